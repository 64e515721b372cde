#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: run-hackbench.sh [--groups "1 2 3 4 8"] [--loops N] [--runs N] [--features A,B[,...]] [--pipe] [--threads]
#                         [--trace] [--trace-loops N] [--timeout SECONDS] [--out DIR] [--here]
#        run-hackbench.sh --machine SxCxT | --kernel A[,B] [OPTION...]
#        run-hackbench.sh --published [--runs N] [--jobs N] [--out DIR]
#        run-hackbench.sh --table DIR
#
# Runs hackbench without and with the features of this series, and compares the two. bench/ab does the work; bench/ab
# --help explains the files in DIR and the exit status, Documentation/usage.rst the table.
#
# It runs hackbench on this machine if you are root and the kernel has the scheduler features that are compared. Otherwise,
# or with --machine or --kernel, it simulates a machine.
#
# Without Python it only collects, and bench/ab makes the table elsewhere. To measure a machine in this way, copy this file,
# and the file features and the directory collect, which are beside it, to one directory there. This needs root, hackbench
# from rt-tests, and a POSIX sh and awk.
#
#   --groups "G..."   numbers of groups, 40 tasks each (1 2 3 4 8)
#   --loops N         messages from each sender to each receiver (100000; simulated: 200)
#   --runs N          pairs of runs, one of each side, for each number of groups (10)
#   --features A,B... what to compare. Each is a side: [LABEL=]WORD[+WORD...]. A WORD is off, nine or all (of the series, no
#                     feature, those of the nine patches, or all), or a scheduler feature as in sched/features; see bench/ab
#                     --help. All sides are compared with the first (off,all)
#   --pipe            send messages through pipes, not sockets (hackbench -p)
#   --threads         use threads, not processes (hackbench -T)
#   --trace           after these runs, run each side once more for each number of groups, with a trace of the scheduler.
#                     Simulated machines always do this, unless --trace-loops is 0
#   --trace-loops N   messages in the traced runs (100)
#   --timeout SECONDS kill a run, or a simulated machine, after this time (as bench/ab; without Python: no limit)
#   --out DIR         the directory for the results (hackbench-DATE-TIME). To continue an interrupted call, repeat it with
#                     the same DIR
#   --here            use this machine or fail; never simulate one
#   --published       on simulated machines, measure the published comparisons of hackbench with sockets on Linux 7.3
#                     again: all, or with --runs the first N pairs of each case. It says whether the figures are the same, to
#                     the digit, and which inputs differ; bench/campaign --repeat does the work, and explains the exit status
#   --table DIR       run nothing; make the table and the page again from the results in DIR
#
# Only on simulated machines, see bench/ab --help; --kernel also takes a line of kernels, such as 6.12:
#
#   --machine, --kernel, --jobs, --quantum, --ips, --idle-exit, --caches, --append
#
# On this machine, the scheduler features, kernel.sched_schedstats and, with --trace, trace events change during the runs.
# debugfs and tracefs are mounted if they are not. All of this is restored at the end, and after an interruption.
#
# Exit status: of bench/ab. Without Python: 0; 1 error, or a run failed; 2 usage error, or the kernel lacks a feature; 3 the
# machine lacks something else.

LC_ALL=C
export LC_ALL
set -u

prog=run-hackbench
dir=$(dirname "$0")
collect=$dir/collect/collect.sh
# The variable is for the tests, which have their own files there.
debug=${STEAL_SYS:-/sys}/kernel/debug

say() { printf '%s: %s\n' "$prog" "$*" >&2; }
die() { say "error: $*"; exit 1; }
wrong() { say "error: $*; see --help"; exit 2; }
cannot() { say "error: $*"; exit 3; }
# stop STATUS TEXT...
stop() { say "error: $(shift; echo "$*")"; exit "$1"; }

# positive OPTION VALUE
positive()
{
	case $2 in
	''|*[!0-9]*|0*) wrong "$1: not a positive number: $2" ;;
	esac
}

# The options become those of bench/ab: each is taken from the front and, translated, put at the end.
groups='' loops=100000 runs=10 features=off,all pipe='' threads='' trace='' trace_loops='' timeout='' out='' here=''
table='' machine='' kernel='' published='' pairs='' jobs='' other='' sim_only='' words=$# left=$#
while [ "$left" -gt 0 ]; do
	option=$1 value=
	shift
	left=$((left - 1))
	case $option in
	--groups|--loops|--runs|--features|--trace-loops|--timeout|--out|--table|\
	--machine|--kernel|--jobs|--quantum|--ips|--idle-exit|--caches|--append)
		[ "$left" -gt 0 ] && value=$1
		[ -n "$value" ] || wrong "$option needs a value"
		shift
		left=$((left - 1)) ;;
	esac
	case $option in
	--loops|--runs|--timeout) positive "$option" "$value" ;;
	--machine|--kernel|--jobs|--quantum|--ips|--idle-exit|--caches|--append) sim_only=$option ;;
	esac
	case $option in
	--published|--runs|--jobs|--out) ;;
	*) other=$option ;;
	esac
	case $option in
	--groups) groups=$(echo "$value" | tr , ' ') ;;
	--loops) loops=$value ;;
	--runs) runs=$value pairs=$value ;;
	--features) features=$value ;;
	--pipe) pipe=-pipe ;;
	--threads) threads=-threads ;;
	--trace) trace=1 ;;
	--trace-loops) trace_loops=$value ;;
	--timeout) timeout=$value ;;
	--out) out=$value ;;
	--here) here=1 ;;
	--table) table=$value ;;
	--machine) machine=$value ;;
	--kernel) kernel=$value ;;
	--published) published=1 ;;
	--jobs) jobs=$value ;;
	--quantum|--ips|--idle-exit|--caches|--append) ;;
	--help) sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) wrong "unknown option: $option" ;;
	esac
	case $option in
	--features) set -- "$@" --sides "$value" ;;
	--groups|--pipe|--threads|--trace|--trace-loops|--here|--table) ;;
	*) set -- "$@" "$option" ${value:+"$value"} ;;
	esac
done

if [ -n "$table" ]; then
	[ "$words" -eq 2 ] || wrong '--table takes no other option'
	[ -x "$dir/ab" ] || cannot "$dir/ab: no such program; run bench/ab --render DIR in a checkout"
	exec "$dir/ab" --render "$table"
fi
# setup: installs what simulated machines need
setup()
{
	if [ -x "$dir/../scripts/setup" ]; then
		"$dir/../scripts/setup" >&2 || cannot "$dir/../scripts/setup failed (see above)"
	fi
}
if [ -n "$published" ]; then
	[ -z "$other" ] || wrong "--published and $other exclude each other: the options are those of the published comparisons"
	[ -x "$dir/campaign" ] || cannot "$dir/campaign: no such program; run this in a checkout"
	names=
	for name in hackbench-intel hackbench-large-intel hackbench-none hackbench-large-none; do
		[ ! -f "$dir/../Documentation/results/$name/plan" ] || names=$names${names:+,}$name
	done
	[ -n "$names" ] || cannot "$dir/../Documentation/results: no comparison of hackbench is published yet; bench/campaign --list shows what is"
	setup
	exec "$dir/campaign" --repeat "$names" ${pairs:+--pairs "$pairs"} ${jobs:+--jobs "$jobs"} ${out:+--out "$out"}
fi
[ -z "$here" ] || [ -z "$sim_only" ] || wrong "--here and $sim_only exclude each other"
load=hackbench$pipe$threads cases=
for g in $groups; do
	positive --groups "$g"
	case ",$cases," in
	*",$load-$g,"*) ;;
	*) cases=$cases${cases:+,}$load-$g ;;
	esac
done
bits=$dir/features
[ -r "$bits" ] || die "$bits: no such file; copy it beside $0"
# By side the features, as bench/ablib/features.py has them; then a line of the features that the kernel must have.
sides=$(echo "$features" | tr , '\n' | awk -v file="$bits" '
	function bad(text) {
		failed = 1
		print text " (--features)"
		exit 1
	}
	BEGIN {
		while ((getline line <file) > 0)
			if (line !~ /^#/ && split(line, field) > 1) {
				bit[++bits] = field[1]
				nine[field[1]] = field[2] == "nine"
			}
		close(file)
	}
	{
		label = what = $0
		sub(/=.*/, "", label)
		sub(/^[^=]*=/, "", what)
		if (label !~ /^[A-Za-z0-9_][A-Za-z0-9_.+-]*$/ || what !~ /^([A-Z0-9_]+|off|nine|all)([+]([A-Z0-9_]+|off|nine|all))*$/)
			bad("not a side: " $0)
		if (label in seen)
			bad("two sides are called " label)
		seen[label]
		split("", on)
		split("", other)
		others = ours = 0
		n = split(what, word, "+")
		for (i = 1; i <= n; i++) {
			name = word[i]
			sub(/^NO_/, "", name)
			if (word[i] ~ /^[a-z]/) {
				for (b = 1; b <= bits; b++)
					on[bit[b]] = word[i] == "all" || word[i] == "nine" && nine[bit[b]]
				ours = 1
			} else if (name in nine) {
				on[name] = name == word[i]
				ours = 1
			} else {
				if (!(name in other))
					order[++others] = name
				other[name] = word[i]
				need[name]
			}
		}
		text = ""
		for (b = 1; b <= bits && ours; b++) {
			text = text "+" (on[bit[b]] ? "" : "NO_") bit[b]
			if (on[bit[b]])
				need[bit[b]]
		}
		for (i = 1; i <= others; i++)
			text = text "+" other[order[i]]
		made = made label "=" substr(text, 2) " "
		sides++
	}
	END {
		if (failed)
			exit 1
		if (sides < 2)
			bad("fewer than two sides")
		print made
		for (b = 1; b <= bits; b++)
			if (bit[b] in need)
				printf "%s ", bit[b]
		for (name in need)
			if (!(name in nine))
				printf "%s ", name
		print ""
	}') || wrong "$sides"
needed=$(echo "$sides" | sed -n 2p)
sides=$(echo "$sides" | sed -n 1p)

# without FEATURES: those that are not in $line
without()
{
	missing=
	for f in $1; do
		case " $line " in
		*" $f "*|*" NO_$f "*) ;;
		*) missing="$missing${missing:+, }$f" ;;
		esac
	done
	echo "$missing"
}

# of_line FEATURES: those that the series for this line of kernels does not leave out
of_line()
{
	awk -v features=" $1 " -v release="$(uname -r)" '
		!/^#/ && NF {
			for (i = 3; i < 6; i += 2) {
				n = $i == "not" ? split($(i + 1), line, ",") : 0
				for (k = 1; k <= n; k++)
					if (index(release, line[k]) == 1 && substr(release, length(line[k]) + 1, 1) !~ /[0-9]/)
						sub(" " $1 " ", " ", features)
			}
		}
		END { print features }' "$bits"
}

# lacks: why the features of the sides cannot be switched on this machine; nothing if they can. Fails if only a feature is missing.
lacks()
{
	[ -d "$debug" ] || { echo "$debug: no such directory, so this kernel has no scheduler features to switch"; return; }
	[ -w "$debug" ] || { echo "$debug is not writable (not root?), so this script cannot see whether the kernel has STEAL"; return; }
	mounted=
	if [ ! -e "$debug/sched/features" ] && mount -t debugfs debugfs "$debug" 2>/dev/null; then
		mounted=1
	fi
	fault='no such file, so this kernel has no scheduler features to switch'
	[ ! -e "$debug/sched/features" ] || fault='cannot be read (kernel lockdown?), so this script cannot switch features'
	line=$(cat "$debug/sched/features" 2>/dev/null)
	[ -z "$mounted" ] || umount "$debug"
	[ -n "$line" ] || { echo "$debug/sched/features: $fault"; return; }
	lacking=$(without "$(of_line "$needed")")
	[ -n "$lacking" ] || return 0
	echo "$debug/sched/features: kernel $(uname -r) has no $lacking"
	nine=$(awk '$2 == "nine" { print $1 }' "$bits")
	[ -n "$(without "$nine")" ] || ! awk -v lacking=", $lacking," 'index(lacking, ", " $1 ",") { found = 1 } END { exit !found }' "$bits" ||
		echo '(it has the nine patches, but not all follow-ups: --features off,nine compares those)'
	return 1
}

why="${machine:+--machine $machine }${kernel:+--kernel $kernel }"
why=${why:+${why}given}
status=3
[ -n "$why" ] || why=$(lacks) || status=2
why=$(echo "$why" | tr '\n' ' ')
why=${why% }
if [ -n "$why" ]; then
	[ -z "$here" ] || stop "$status" "$why; run this on a kernel with all patches"
	[ -x "$dir/ab" ] || stop "$status" "$why; run this on a kernel with all patches, or in a checkout, which simulates a machine"
	say "$why; running on a simulated machine (--here prevents this)"
	[ "$trace_loops" = 0 ] && trace='' || trace=1
	setup
	[ -n "$machine" ] || set -- --machine 1x10x2 "$@"
else
	[ -z "$sim_only" ] || wrong "$sim_only is for simulated machines only; name one with --machine"
	[ -z "$trace_loops" ] || [ -n "$trace" ] || wrong '--trace-loops needs --trace'
fi
if [ -n "$trace" ]; then
	[ -z "$trace_loops" ] || positive --trace-loops "$trace_loops"
	set -- "$@" --trace ${trace_loops:+--trace-loops "$trace_loops"}
fi
if [ -z "$out" ]; then
	out=hackbench-$(date +%Y%m%d-%H%M%S)
	set -- "$@" --out "$out"
fi
python=$(sed -n '1s/^#! *//p' "$dir/ab" 2>/dev/null)
modules='numpy pandas scipy matplotlib jinja2'
# shellcheck disable=SC2086  # words
if [ -n "$why" ] || { [ -n "$python" ] && "$python" -c \
	'import importlib.util, sys; sys.exit(None in map(importlib.util.find_spec, sys.argv[1:]))' $modules 2>/dev/null; }; then
	exec "$dir/ab" --load "${cases:-$load}" "$@"
fi

# Without Python: the plan and the raw files, as bench/ab has them.
[ -r "$collect" ] || die "$collect: no such file; copy the directory collect beside $0"
if [ -z "$cases" ]; then
	cases=$(sh "$collect" --list "$load" | sed -n "s/^levels /$load-/p" | sed "s/ /,$load-/g")
fi
made=
[ -d "$out" ] || made=1
plan=$out/plan schedule=$out/.schedule
[ -e "$plan" ] || [ -z "$(ls "$out" 2>/dev/null)" ] || wrong "$out: not empty, and not of a comparison; choose another --out"
mkdir -p "$out" || die "$out: cannot be made (--out)"
seed=$(sed -n 's/^order_seed //p' "$plan" 2>/dev/null)
seed=${seed:-$(date +%s)}
{
	echo 'format 2'
	echo "$cases" | tr , '\n' | sed 's/^/case /'
	echo "kernel $(uname -r) $(uname -v)"
	echo "sides $(echo "${sides% }" | tr ' ' ,)"
	echo "bits $(awk '!/^#/ && NF { printf "%s%s", comma, $1; comma = "," }' "$bits")"
	sh "$collect" --list "$load" | sed -n "s/^parse /metric:$load /p; s/^level_name /level_name:$load /p; s/^about /about:$load /p"
	echo "loops $loops"
	[ -z "$trace" ] || echo "trace_loops ${trace_loops:-100}"
	echo "runs $runs"
	echo "order_seed $seed"
	echo 'machine here'
	echo "project ${STEAL_PROJECT:-unknown}"
} >"$out/.plan" || die "$out: cannot be written"
if [ -e "$plan" ]; then
	grep -v '^project ' "$plan" >"$out/.old"
	grep -v '^project ' "$out/.plan" | cmp -s - "$out/.old" || differs=1
	rm -f "$out/.plan" "$out/.old"
	[ -z "${differs:-}" ] || wrong "$out: has runs of another comparison (see $plan); choose another --out"
else
	mv "$out/.plan" "$plan"
fi
# Long runs first. The sides of a pair are in random order, and of each two pairs the second has the order of the first reversed.
echo "$cases" | tr , '\n' | sed 's/.*-//' | sort -rn | awk -v load="$load" -v runs="$runs" -v traced="$trace" -v seed="$seed" -v sides="$sides" '
	{ level[NR] = $1 }
	END {
		srand(seed)
		n = split(sides, side, " ")
		for (pair = 1; pair <= runs + traced; pair++)
			for (c = 1; c <= NR; c++) {
				for (i = 1; i <= n && pair % 2; i++) {
					j = 1 + int(i * rand())
					order[c, i] = order[c, j]
					order[c, j] = i
				}
				for (i = 1; i <= n; i++) {
					split(side[order[c, pair % 2 ? i : n + 1 - i]], part, "=")
					print load "-" level[c], (pair > runs ? 0 : pair), i, part[1], part[2]
				}
			}
	}' >"$schedule" || die "$schedule: cannot be written"

say "$(grep -c '' "$schedule") runs; their files go to $out"
STEAL_PROJECT=${STEAL_PROJECT:-unknown} sh "$collect" --out "$out/raw/here" --schedule "$schedule" --loops "$loops" \
	--trace-loops "${trace_loops:-100}" ${timeout:+--timeout "$timeout"} --say-runs &
collector=$!
trap 'kill "$collector"' HUP INT TERM
wait "$collector"
status=$?
# A trap ends wait. The collector may take a moment to put all back.
while kill -0 "$collector" 2>/dev/null; do
	wait "$collector"
	status=$?
done
rm -f "$schedule"
case $status in
0|1) say "to make the table, copy $out to a machine with a checkout, and there: bench/run-hackbench.sh --table $out" ;;
2|3)
	# Nothing was measured.
	[ -d "$out/raw" ] || rm -f "$plan"
	[ -z "$made" ] || rmdir "$out" 2>/dev/null ;;
*) say "interrupted; to continue: the same command with --out $out" ;;
esac
exit "$status"
