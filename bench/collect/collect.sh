#!/bin/sh
# SPDX-License-Identifier: GPL-2.0

# Usage: collect.sh --out DIR --schedule FILE [--perf-stat] [--timeout SECONDS] -- COMMAND [ARG...]
#
# Runs COMMAND on this machine once for each line of the schedule, and keeps what the kernel and COMMAND print.
# bench/ab calls it, on real and on simulated machines. It needs a POSIX sh and awk. If the schedule names
# scheduler features, it needs root and debugfs. llc.awk must be in the same directory or in the one above.
#
#   --schedule FILE    one line for each run: PAIR POSITION SIDE FEATURE[+FEATURE...], with - for no features.
#                      The runs have the order of the lines. Runs that DIR has already are not repeated
#   --out DIR          the directory for the results
#   --perf-stat        run COMMAND under perf stat
#   --timeout SECONDS  kill COMMAND after this time; the exit status of the run is then 124
#
# It writes:
#
#   DIR/machine/         uname cmdline features cpuinfo-model online topology schedstat-version boot_id clock
#                        sim (the content of $STEAL_SIM) project (the content of $STEAL_PROJECT)
#   DIR/runs/PAIR-SIDE/  command (an argument a line) schedule (its line) boot_id features online began_ns ended_ns exit
#                        stdout stderr schedstat.before schedstat.after idle_search.before idle_search.after perf-stat
#                        valid (yes, or why not), and sum: checksums of all these files, by cksum if there is one, or
#                        else by sha256sum
#
# COMMAND runs with LC_ALL=C and without standard input. This script sets the features of the run's side and
# kernel.sched_schedstats=1, and mounts debugfs if it is not mounted. It restores all of this when it ends or is
# interrupted.
#
# Exit status: 0; 1 error, or a run failed (DIR keeps it, and it is not repeated); 2 usage error; 3 this machine lacks
# something that the runs need.

LC_ALL=C
export LC_ALL
set -u

prog=collect
dir=$(dirname "$0")
# The two variables are for the tests, which have their own files there.
proc=${STEAL_PROC:-/proc}
sys=${STEAL_SYS:-/sys}
debug=$sys/kernel/debug
features=$debug/sched/features
idle_search=$debug/sched/idle_search
schedstats=$proc/sys/kernel/sched_schedstats

say() { printf '%s: %s\n' "$prog" "$*" >&2; }
die() { say "error: $*"; exit 1; }
wrong() { say "error: $*; see --help"; exit 2; }
cannot() { say "error: $*"; exit 3; }

out='' schedule='' perf='' timeout=''
while [ $# -gt 0 ]; do
	case $1 in
	--out|--schedule|--timeout)
		[ -n "${2:-}" ] || wrong "$1 needs a value"
		case $1 in
		--out) out=$2 ;;
		--schedule) schedule=$2 ;;
		--timeout) timeout=$2 ;;
		esac
		shift 2 ;;
	--perf-stat) perf=1; shift ;;
	--help) sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
	--) shift; break ;;
	*) wrong "unknown option: $1" ;;
	esac
done
[ -n "$out" ] || wrong '--out is missing'
[ -n "$schedule" ] || wrong '--schedule is missing'
[ $# -gt 0 ] || wrong 'no command (write it after --)'
case $timeout in
*[!0-9]*|0*) wrong "--timeout '$timeout' is not a number of seconds" ;;
esac
{ [ -f "$schedule" ] && [ -r "$schedule" ]; } || wrong "$schedule: no such file, or it cannot be read (--schedule)"
awk -v file="$schedule" '
	NF != 4 || $1 !~ /^[1-9][0-9]*$/ || $2 !~ /^[1-9][0-9]*$/ || $3 !~ /^[A-Za-z0-9_.-]+$/ || $4 !~ /^(-|[A-Za-z0-9_]+([+][A-Za-z0-9_]+)*)$/ {
		print "collect: error: " file ":" NR ": not PAIR POSITION SIDE FEATURE[+FEATURE...]: " $0
		bad = 1
		exit
	}
	seen[$1 "-" $3]++ {
		print "collect: error: " file ":" NR ": a second run of pair " $1 ", side " $3
		bad = 1
		exit
	}
	END { exit bad }' "$schedule" >&2 || exit 2

# has FEATURE: is it in that state? (STEAL, or NO_STEAL)
has()
{
	line=$(cat "$features" 2>/dev/null)
	case " $line " in
	*" $1 "*) return 0 ;;
	esac
	return 1
}

# set_features WORDS: those of a side; of the others that the schedule names, the state that was found.
set_features()
{
	set_to=$(echo "$1" | tr + ' ')
	[ "$set_to" != - ] || set_to=
	for f in $was; do
		case " $set_to " in
		*" ${f#NO_} "*|*" NO_${f#NO_} "*) ;;
		*) set_to="$f $set_to" ;;
		esac
	done
	for f in $set_to; do
		has "$f" && continue
		{ echo "$f" >"$features"; } 2>/dev/null
		has "$f" || die "$features does not show $f after writing it (is debugfs locked down?)"
	done
}

# descendants PID: the processes that it has started, and those they have
descendants()
{
	cat /proc/[0-9]*/stat 2>/dev/null | awk -v of="$1" '
		{ pid = $1; sub(/.*\) /, ""); parent[pid] = $2 }
		END {
			is[of] = more = 1
			while (more) {
				more = 0
				for (p in parent)
					if (is[parent[p]] && !is[p])
						is[p] = more = 1
			}
			for (p in parent)
				if (is[p] && p != of)
					print p
		}'
}

# end_all PID: ask this process and what it has started to end, and kill them a second later.
end_all()
{
	children=$(descendants "$1")
	# shellcheck disable=SC2086 # a list of numbers
	kill "$1" $children
	sleep 1
	# shellcheck disable=SC2086
	kill -KILL "$1" $children
} 2>/dev/null

# now: monotonic nanoseconds in $time_now. With timer_list by the shell alone: to start a program takes time.
now()
{
	time_now=0
	case $clock in
	timer_list)
		while read -r word at time_now rest; do
			[ "$word $at" != 'now at' ] || return
		done <"$proc/timer_list"
		;;
	date) time_now=$(date +%s%N) ;;
	*)
		read -r time_now rest <"$proc/uptime"
		time_now=${time_now%.*}${time_now#*.}0000000
		;;
	esac
}

# first FILE...: what the first of the files says, or -
first()
{
	for f; do
		[ -r "$f" ] && cat "$f" && return
	done
	echo -
}

cksum='cksum'
command -v cksum >/dev/null || cksum=sha256sum

boot_id() { first "$proc/sys/kernel/random/boot_id"; }
online() { first "$sys/devices/system/cpu/online"; }

# topology: a line for each CPU. The LLC is the scheduler's if it tells (sched_verbose), else the widest cache of
# those in sysfs.
topology()
{
	shared=$(grep -sH SD_SHARE_LLC "$debug"/sched/domains/cpu*/domain*/flags | cat - "$stat" | awk -f "$llc_awk")
	for d in "$sys"/devices/system/cpu/cpu[0-9]*; do
		[ -e "$d/topology" ] || continue
		c=${d##*/cpu} llc=- level=0 node=-
		for i in "$d"/cache/index*; do
			l=$(first "$i/level")
			[ "$l" != - ] && [ "$l" -gt "$level" ] && level=$l llc=$(first "$i/shared_cpu_list")
		done
		l=$(echo "$shared" | sed -n "s/^cpu$c //p")
		llc=${l:-$llc}
		for i in "$d"/node[0-9]*; do
			[ -e "$i" ] && node=${i##*/node}
		done
		echo "cpu $c package $(first "$d/topology/physical_package_id")" \
			"core $(first "$d/topology/core_id")" \
			"threads $(first "$d/topology/core_cpus_list" "$d/topology/thread_siblings_list")" \
			"llc $llc node $node"
	done | sort -n -k 2
}

# keep FILE AS: copy it to $new/AS if it is there
keep()
{
	[ ! -r "$1" ] || cat "$1" >"$new/$2" || die "$new/$2: cannot be written"
}

# snapshot WHEN: the counters
snapshot()
{
	keep "$proc/schedstat" "schedstat.$1"
	keep "$idle_search" "idle_search.$1"
}

# sums DIR: cksum of its files but sum, by name; busybox has sha256sum instead
sums()
(
	cd "$1" || exit
	set --
	for f in *; do
		[ "$f" = sum ] || set -- "$@" "$f"
	done
	$cksum "$@"
)

# is_done PAIR SIDE: has DIR this run? One that is not whole is deleted.
is_done()
{
	old=$out/runs/$1-$2
	[ -d "$old" ] || return 1
	if [ -f "$old/sum" ] && [ "$(sums "$old")" = "$(cat "$old/sum")" ]; then
		return 0
	fi
	say "$old is incomplete or damaged; the run is repeated"
	rm -rf "$old" || die "$old: cannot be deleted"
	return 1
}

old_schedstats='' was='' mounted='' changed='' command='' watch='' tmp=''

# restore: put back whatever was changed; on every way out.
restore()
{
	if [ -n "$changed" ]; then
		changed=
		for f in $was; do
			has "$f" && continue
			{ echo "$f" >"$features"; } 2>/dev/null
			has "$f" || say "cannot restore: echo $f >$features"
		done
		if [ -n "$old_schedstats" ]; then
			echo "$old_schedstats" >"$schedstats" || say "cannot restore: echo $old_schedstats >$schedstats"
		fi
		rm -f "$out/.was"
	fi
	if [ -n "$mounted" ]; then
		umount "$mounted" || say "cannot restore: umount $mounted"
		mounted=
	fi
	[ -z "$tmp" ] || rm -rf "$tmp" "$out/runs"/.*.new "$out/.machine.new"
	tmp=
}

# end_watch: of the one that waits for the time to be over
end_watch()
{
	[ -n "$watch" ] || return 0
	kill "$watch"
	wait "$watch"
	watch=
} 2>/dev/null

# stop STATUS: a signal came.
# shellcheck disable=SC2317  # the traps call it
stop()
{
	trap '' INT TERM HUP PIPE
	end_watch
	if [ -n "$command" ]; then
		end_all "$command"
		wait "$command" 2>/dev/null
	fi
	restore
	trap - EXIT
	exit "$1"
}
trap restore EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 141' PIPE
trap 'stop 143' TERM

# A call that was killed a moment ago may still be putting everything back.
tries=0
while pid=$(sed -n 4p "$out/.was" 2>/dev/null) && [ -n "$pid" ] && grep -q collect.sh "/proc/$pid/cmdline" 2>/dev/null; do
	tries=$((tries + 1))
	[ "$tries" -lt 10 ] || die "$out: another collect.sh uses this directory (process $pid); wait for it to end"
	sleep 1
done

# What this machine must have, before anything is made.
named=$(awk '$4 != "-" { n = split($4, f, "+"); for (i = 1; i <= n; i++) { sub(/^NO_/, "", f[i]); print f[i] } }' "$schedule" | sort -u)
if [ -n "$named" ]; then
	[ -d "$debug" ] || cannot "$debug: no such directory: this kernel has no debugfs, which the switch of scheduler features needs"
	if [ ! -e "$features" ] && [ -w "$debug" ]; then
		if mount -t debugfs debugfs "$debug" 2>/dev/null; then
			mounted=$debug
		fi
	fi
	if [ ! -e "$features" ] && [ "$(id -u)" != 0 ]; then
		cannot "$features: missing or not visible; only root can switch scheduler features"
	fi
	[ -e "$features" ] || cannot "$features: no such file: this kernel has no scheduler features to switch"
	[ -w "$features" ] || cannot "$features: cannot be written; only root can switch scheduler features"
	for f in $named; do
		if has "$f"; then
			was="$was$f "
		elif has "NO_$f"; then
			was="${was}NO_$f "
		else
			cannot "$features: kernel $(uname -r) has no $f"
		fi
	done
fi
[ -z "$perf" ] || command -v perf >/dev/null || cannot 'perf is not installed (--perf-stat)'
if [ -e "$schedstats" ]; then
	[ -w "$schedstats" ] || cannot "$schedstats: cannot be written; run this as root"
	old_schedstats=$(cat "$schedstats")
fi
llc_awk=$dir/llc.awk
[ -r "$llc_awk" ] || llc_awk=$dir/../llc.awk
[ -r "$llc_awk" ] || die "$dir/llc.awk is missing; copy it beside $0"
stat=$proc/schedstat
[ -r "$stat" ] || stat=/dev/null
cpuinfo=$proc/cpuinfo
[ -r "$cpuinfo" ] || cpuinfo=/dev/null

clock=timer_list
if [ -z "$(sed -n '/^now at [1-9]/{p;q;}' "$proc/timer_list" 2>/dev/null)" ]; then
	clock='date'
	case $(date +%s%N 2>/dev/null) in
	''|*[!0-9]*) clock=uptime ;;
	esac
fi

mkdir -p "$out/runs" || die "$out: cannot be made (--out)"
boot=$(boot_id)

# A call that was killed has left the features as its last run had them, and a note of how it found them.
rm -rf "$out/runs"/.*.new "$out/.machine.new" "$out"/.tmp-*
tmp=$out/.tmp-$$
mkdir "$tmp" || die "$tmp: cannot be made"
if [ -f "$out/.was" ] && [ "$(sed -n 1p "$out/.was")" = "$boot" ]; then
	before=$(sed -n 2p "$out/.was")
	for f in $before; do
		case " $was " in
		*" ${f#NO_} "*|*" NO_${f#NO_} "*) was="$f $(echo " $was" | sed "s/ \(NO_\)\{0,1\}${f#NO_} / /")" ;;
		esac
	done
	old_schedstats=$(sed -n 3p "$out/.was")
fi
{ printf '%s\n' "$boot" "$was" "$old_schedstats" $$ >"$tmp/was" && mv "$tmp/was" "$out/.was"; } ||
	die "$out/.was: cannot be written"
changed=1

new=$out/.machine.new
mkdir "$new" || die "$new: cannot be made"
{
	uname -srvm >"$new/uname" && topology >"$new/topology" && online >"$new/online" && echo "$boot" >"$new/boot_id" &&
		echo "$clock" >"$new/clock" &&
		sed -n '/^model name/{s/^[^:]*: *//p;q;}' "$cpuinfo" >"$new/cpuinfo-model" &&
		sed -n 's/^version //p' "$stat" >"$new/schedstat-version"
} || die "$new: cannot be written"
keep "$proc/cmdline" cmdline
keep "$features" features
if [ -n "${STEAL_SIM:-}" ]; then
	echo "$STEAL_SIM" >"$new/sim" || die "$new/sim: cannot be written"
fi
if [ -n "${STEAL_PROJECT:-}" ]; then
	echo "$STEAL_PROJECT" >"$new/project" || die "$new/project: cannot be written"
fi
if [ -d "$out/machine" ]; then
	for f in uname cmdline cpuinfo-model online topology clock; do
		[ ! -e "$out/machine/$f" ] || cmp -s "$out/machine/$f" "$new/$f" ||
			{ rm -rf "$new"; wrong "$out has runs of another machine or kernel ($out/machine/$f differs); choose another --out"; }
	done
	rm -rf "$out/machine"
fi
mv "$new" "$out/machine" || die "$out/machine: cannot be written"

if [ -n "$old_schedstats" ] && [ "$(cat "$schedstats")" != 1 ]; then
	echo 1 >"$schedstats" || die "$schedstats: cannot be written"
fi

# one PAIR POSITION SIDE FEATURES COMMAND...: a run
one()
{
	pair=$1 position=$2 side=$3 wanted=$4
	shift 4
	new=$out/runs/.$pair-$side.new
	mkdir "$new" || die "$new: cannot be made"
	set_features "$wanted"
	{
		printf '%s\n' "$@" >"$new/command" && echo "$pair $position $side $wanted" >"$new/schedule" &&
			echo "$boot" >"$new/boot_id" && online >"$new/online" && : >"$new/stdout" && : >"$new/stderr"
	} || die "$new: cannot be written"
	keep "$features" features
	[ -z "$perf" ] || set -- perf stat -x, -o "$new/perf-stat" -- "$@"
	snapshot before
	rm -f "$tmp/time-over"

	# In the background because a trap waits for what runs in the foreground.
	now
	began=$time_now
	"$@" >"$new/stdout" 2>"$new/stderr" </dev/null &
	command=$!
	if [ -n "$timeout" ]; then
		(
			pause=
			trap 'kill $pause; exit' TERM
			sleep "$timeout" &
			pause=$!
			wait $pause
			: >"$tmp/time-over"
			end_all "$command"
		) >/dev/null 2>&1 </dev/null &
		watch=$!
	fi
	wait "$command"
	status=$?
	now
	command=
	snapshot after
	if [ -e "$tmp/time-over" ]; then
		wait "$watch" 2>/dev/null
		watch='' status=124
	fi
	end_watch

	valid=yes
	if [ "$(online)" != "$(cat "$new/online")" ]; then
		valid='the online CPUs changed'
	elif [ -e "$new/features" ] && [ "$(cat "$features" 2>/dev/null)" != "$(cat "$new/features")" ]; then
		valid='somebody changed the scheduler features'
	elif [ "$time_now" -le "$began" ]; then
		valid="the clock $clock did not move forward"
	fi
	{
		echo "$began" >"$new/began_ns" && echo "$time_now" >"$new/ended_ns" && echo "$status" >"$new/exit" &&
			echo "$valid" >"$new/valid" && sums "$new" >"$tmp/sum" && cat "$tmp/sum" >"$new/sum" &&
			mv "$new" "$out/runs/$pair-$side"
	} || die "$new: cannot be written"
	if [ "$status" -ne 0 ]; then
		failed=$((failed + 1))
		why=$(cat "$out/runs/$pair-$side/stderr" "$out/runs/$pair-$side/stdout" | sed -n '/./{p;q;}')
		say "pair $pair, $side: the command failed with status $status${why:+: $why}"
	elif [ "$valid" != yes ]; then
		failed=$((failed + 1))
		say "pair $pair, $side: not valid: $valid"
	fi
}

failed=0
while read -r pair position side wanted <&3; do
	is_done "$pair" "$side" || one "$pair" "$position" "$side" "$wanted" "$@" 3<&-
done 3<"$schedule"
[ "$failed" = 0 ]
