#!/bin/sh
# SPDX-License-Identifier: GPL-2.0

# Usage: collect.sh --out DIR --schedule FILE [--loops N] [--trace-loops N] [--scale N] [--perf-stat] [--timeout SECONDS]
#                   [--say-runs] [-- COMMAND [ARG...]]
#        collect.sh --list [LOAD|CASE...]
#
# Runs loads, or COMMAND, on this machine once for each line of the schedule, and keeps what the kernel and the programs
# print. bench/ab and bench/run-hackbench.sh call it, on real and on simulated machines. It needs a POSIX sh and awk. If the
# schedule names scheduler features, it needs root and debugfs. llc.awk, loads/ and load.c (or load, compiled) must be in the
# same directory, the file features there or one directory up: of the features that it lists, those that no line turns on may be
# missing in the kernel.
#
#   --schedule FILE    one line for each run: CASE PAIR POSITION SIDE FEATURE[+FEATURE...], with - for no features.
#                      CASE is LOAD or LOAD-LEVEL (see --list), or the word command, which stands for COMMAND. LEVEL is a
#                      number, or a multiple of the number of CPUs, such as 0.5x. PAIR 0 is for traced runs: the
#                      scheduler's trace points are on, and the amount of work is --trace-loops, or a scale of 1. The runs have the
#                      order of the lines. Runs that DIR has already are not repeated
#   --out DIR          the directory for the results
#   --loops N          messages from each sender to each receiver of hackbench (100000)
#   --trace-loops N    the same in traced runs (100)
#   --scale N          amount of work of the other loads (50); 1 in traced runs
#   --perf-stat        run the program under perf stat
#   --timeout SECONDS  kill a run after this time; its exit status is then 124
#   --say-runs         print a line for each run
#   --list             run nothing. Print for each load, or for each LOAD or CASE, the lines: load NAME, about TEXT,
#                      needs PROGRAM PACKAGE, here yes|no, levels LEVEL... (of a CASE its own), level_name TEXT,
#                      amount loops|scale, parse METRIC (for each metric, as bench/ab --metric), and end
#
# It writes:
#
#   DIR/machine/              uname cmdline features cpuinfo-model online topology schedstat-version boot_id clock
#                             sim (the content of $STEAL_SIM) project (the content of $STEAL_PROJECT)
#   DIR/runs/CASE/PAIR-SIDE/  command (an argument a line; of a load: LOAD, LEVEL, and loops=N or scale=N), schedule (its
#                             line) boot_id features online began_ns ended_ns exit stdout stderr schedstat.before
#                             schedstat.after idle_search.before idle_search.after perf-stat, tasks (the level as a
#                             number), trace (of pair 0), section (of a simulated machine with sections: the number of
#                             the section with the run), valid (yes, or why not), and sum: checksums of all these files,
#                             by cksum if there is one, or else by sha256sum
#
# The programs run with LC_ALL=C and without standard input. This script sets the features of the run's side and
# kernel.sched_schedstats=1. For traced runs it sets trace events and the size of the trace buffer. It mounts debugfs and
# tracefs if they are not mounted. It restores all of this when it ends or is interrupted.
#
# Exit status: 0; 1 error, or a run failed (DIR keeps it, and it is not repeated); 2 usage error, or the kernel lacks a feature;
# 3 this machine lacks something else that the runs need.

LC_ALL=C
export LC_ALL
set -u

prog=collect
dir=$(dirname "$0")
loads=$dir/loads
# The features of the series.
bits=$dir/features
[ -r "$bits" ] || bits=$dir/../features
# The variables are for the tests, which have their own files there.
proc=${STEAL_PROC:-/proc}
sys=${STEAL_SYS:-/sys}
debug=$sys/kernel/debug
features=$debug/sched/features
idle_search=$debug/sched/idle_search
# On a simulated machine that counts for sections of time: marks them (sim/qemu/section.c).
section=${STEAL_SECTION:-/opt/section}
[ -n "${STEAL_SIM:-}" ] && [ -x "$section" ] || section=
schedstats=$proc/sys/kernel/sched_schedstats

say() { printf '%s: %s\n' "$prog" "$*" >&2; }
die() { say "error: $*"; exit 1; }
wrong() { say "error: $*; see --help"; exit 2; }
cannot() { say "error: $*"; exit 3; }

# is_level WORD: a number, or a multiple of the CPUs
is_level()
{
	case $1 in
	*x)
		case ${1%x} in
		''|*.*.*|*[!0-9.]*|.*|*.|0[0-9]*) return 1 ;;
		esac ;;
	''|0*|*[!0-9]*) return 1 ;;
	esac
}

# read_case CASE: the load in $name, the level in $level, and what the load's file sets. Fails if CASE is none.
read_case()
{
	name=$1 level=
	if [ "${1##*-}" != "$1" ] && is_level "${1##*-}"; then
		name=${1%-*} level=${1##*-}
	fi
	case $name in
	''|*[!a-z0-9-]*) return 1 ;;
	esac
	[ -f "$loads/$name" ] || return 1
	needs='' levels='' level_name='' parse='' amount=scale
	check() { :; }
	# shellcheck source=/dev/null
	. "$loads/$name"
	[ -z "$level" ] || [ -n "$levels" ]
}

# missing: what this machine lacks for the load; nothing if it has all
missing()
{
	case $needs in
	'load '*)
		[ -x "$dir/load" ] || { [ -r "$dir/load.c" ] && command -v cc >/dev/null; } ||
			echo "there is no $dir/load, and no $dir/load.c with cc to compile it" ;;
	*) command -v "${needs%% *}" >/dev/null || echo "${needs%% *} is not installed (package ${needs#* })" ;;
	esac
}

# list CASE: what --list prints
list()
{
	read_case "$1" || wrong "not a load: $1 (--list)"
	echo "load $name"
	awk '/^# (SPDX|shellcheck)/ { next } !/^# / { exit } { sub(/^# ([a-z0-9-]+: )?/, ""); text = text " " $0 }
		END { print "about" text }' "$loads/$name"
	echo "needs $needs"
	[ -z "$(missing)" ] && echo 'here yes' || echo 'here no'
	[ -z "$levels" ] || printf '%s\n' "levels ${level:-$levels}" "level_name $level_name"
	echo "amount $amount"
	echo "$parse" | sed 's/^/parse /'
	echo end
}

out='' schedule='' perf='' timeout='' say_runs='' all_loops=100000 trace_loops=100 all_scale=50
while [ $# -gt 0 ]; do
	case $1 in
	--out|--schedule|--timeout|--loops|--trace-loops|--scale)
		[ -n "${2:-}" ] || wrong "$1 needs a value"
		case $1 in
		--out) out=$2 ;;
		--schedule) schedule=$2 ;;
		*)
			case $2 in
			*[!0-9]*|0*) wrong "$1 '$2' is not a positive number" ;;
			esac ;;
		esac
		case $1 in
		--timeout) timeout=$2 ;;
		--loops) all_loops=$2 ;;
		--trace-loops) trace_loops=$2 ;;
		--scale) all_scale=$2 ;;
		esac
		shift 2 ;;
	--perf-stat) perf=1; shift ;;
	--say-runs) say_runs=1; shift ;;
	--list)
		shift
		[ $# -gt 0 ] || set -- "$loads"/*
		for l; do
			list "${l##*/}"
		done
		exit ;;
	--help) sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
	--) shift; break ;;
	*) wrong "unknown option: $1" ;;
	esac
done
[ -n "$out" ] || wrong '--out is missing'
[ -n "$schedule" ] || wrong '--schedule is missing'
{ [ -f "$schedule" ] && [ -r "$schedule" ]; } || wrong "$schedule: no such file, or it cannot be read (--schedule)"
awk -v file="$schedule" '
	NF != 5 || $2 !~ /^(0|[1-9][0-9]*)$/ || $3 !~ /^[1-9][0-9]*$/ || $4 !~ /^[A-Za-z0-9_.+-]+$/ ||
	$5 !~ /^(-|[A-Za-z0-9_]+([+][A-Za-z0-9_]+)*)$/ {
		print "collect: error: " file ":" NR ": not CASE PAIR POSITION SIDE FEATURE[+FEATURE...]: " $0
		bad = 1
		exit
	}
	seen[$1, $2, $4]++ {
		print "collect: error: " file ":" NR ": a second run of " $1 ", pair " $2 ", side " $4
		bad = 1
		exit
	}
	END { exit bad }' "$schedule" >&2 || exit 2
cases=$(awk '!seen[$1]++ { print $1 }' "$schedule")
case " $(echo "$cases" | tr '\n' ' ')" in
' command ') [ $# -gt 0 ] || wrong 'no command (write it after --)' ;;
*' command '*) wrong "$schedule: has loads and the case command" ;;
*) [ $# = 0 ] || wrong "a command after --, but $schedule has no case command" ;;
esac
for c in $cases; do
	[ "$c" != command ] || continue
	read_case "$c" || wrong "$schedule: not a load: $c; see --list"
	[ -n "$level" ] || [ -z "$levels" ] || wrong "$schedule: $c needs a level, such as $c-${levels%% *}"
done
traced=$(awk '$2 == 0 { print "yes"; exit }' "$schedule")

# turned_on FEATURE: does a line of the schedule turn it on?
turned_on()
{
	awk -v f="$1" '{ n = split($5, word, "+"); for (i = 1; i <= n; i++) if (word[i] == f) on = 1 } END { exit !on }' "$schedule"
}

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
		case " $absent " in
		*" $f "*) continue ;;
		esac
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

# execute COMMAND [ARG...]: what a run is made of: becomes the command
execute()
{
	[ -z "$perf" ] || exec perf stat -x, -o "$new/perf-stat" -- "$@"
	exec "$@"
}

# tasks_of LEVEL: how many a level stands for, at least 1
tasks_of()
{
	case $1 in
	*x) awk -v x="${1%x}" -v n="$cpus" 'BEGIN { t = int(x * n + 0.5); print t < 1 ? 1 : t }' ;;
	*) echo "$1" ;;
	esac
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
		c=${d##*/cpu} llc=- highest=0 node=-
		for i in "$d"/cache/index*; do
			l=$(first "$i/level")
			[ "$l" != - ] && [ "$l" -gt "$highest" ] && highest=$l llc=$(first "$i/shared_cpu_list")
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

# mark begin|end: a section, on a machine that has sections
mark()
{
	[ -z "$section" ] || "$section" "$1" || die "$section $1: failed"
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

# is_done CASE PAIR SIDE: has DIR this run? One that is not whole is deleted.
is_done()
{
	old=$out/runs/$1/$2-$3
	[ -d "$old" ] || return 1
	if [ -f "$old/sum" ] && [ "$(sums "$old")" = "$(cat "$old/sum")" ]; then
		return 0
	fi
	say "$old is incomplete or damaged; the run is repeated"
	rm -rf "$old" || die "$old: cannot be deleted"
	return 1
}

old_schedstats='' was='' mounted='' changed='' command='' watch='' work='' tracing='' old_tracing='' old_buffer=''
events='sched_switch sched_wakeup sched_wakeup_new sched_migrate_task sched_process_exit'

# find_tracing: tracefs, in $tracing
find_tracing()
{
	for tracing in "$sys/kernel/tracing" "$debug/tracing"; do
		[ ! -e "$tracing/tracing_on" ] || break
	done
	if [ ! -e "$tracing/tracing_on" ]; then
		tracing=$sys/kernel/tracing
		mount -t tracefs tracefs "$tracing" 2>/dev/null || cannot "$tracing: no tracefs, which traced runs need"
		mounted="$tracing $mounted"
	fi
	for e in $events; do
		case $(first "$tracing/events/sched/$e/enable") in
		0) ;;
		-) cannot "$tracing: no trace event $e, which traced runs need" ;;
		*) cannot "$tracing/events/sched/$e is in use; traced runs need the trace for themselves" ;;
		esac
	done
}

trace_on()
{
	old_tracing=$(cat "$tracing/tracing_on")
	# with "(expanded: N)" while the buffer is still the small one of the boot
	old_buffer=$(sed 's/.*expanded: \([0-9]*\).*/\1/' "$tracing/buffer_size_kb")
	note
	{
		echo 0 >"$tracing/tracing_on" && echo 4096 >"$tracing/buffer_size_kb" && echo >"$tracing/trace" &&
			for e in $events; do echo 1 >"$tracing/events/sched/$e/enable" || die "$tracing: cannot be set"; done &&
			echo 1 >"$tracing/tracing_on"
	} || die "$tracing: cannot be set"
}

# trace_off: put everything of the tracing back
trace_off()
{
	[ -n "$old_buffer" ] || return 0
	echo 0 >"$tracing/tracing_on"
	for e in $events; do
		echo 0 >"$tracing/events/sched/$e/enable"
	done
	echo >"$tracing/trace"
	echo "$old_buffer" >"$tracing/buffer_size_kb" || say "cannot restore: echo $old_buffer >$tracing/buffer_size_kb"
	echo "$old_tracing" >"$tracing/tracing_on"
	old_buffer=
}

# keep_trace: to $new/trace
keep_trace()
{
	echo 0 >"$tracing/tracing_on"
	cat "$tracing/trace" >"$work/trace" &&
		{
			echo "#: cpus $(grep -c '' "$out/machine/topology")"
			echo "#: clock $(sed 's/.*\[\(.*\)\].*/\1/' "$tracing/trace_clock")"
			sed -n 's/^.* \([0-9.]*\): tracing_mark_write: run begins$/#: begin \1/p
				s/^.* \([0-9.]*\): tracing_mark_write: run ends$/#: end \1/p' "$work/trace"
			echo "#: overruns $(cat "$tracing"/per_cpu/cpu*/stats |
				awk '/^(overrun|commit overrun|dropped events):/ { n += $NF } END { print n + 0 }')"
			cat "$work/trace"
		} >"$new/trace" && rm "$work/trace"
}

# note: how this call found the machine, for the next call if this one is killed
note()
{
	{
		printf '%s\n' "$boot" "$was" "$old_schedstats" $$ "${old_buffer:+$tracing $old_tracing $old_buffer}" >"$work/was" &&
			mv "$work/was" "$out/.was"
	} || die "$out/.was: cannot be written"
}

# restore: put back whatever was changed; on every way out.
restore()
{
	trace_off
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
	for m in $mounted; do
		umount "$m" || say "cannot restore: umount $m"
	done
	mounted=
	[ -z "$work" ] || rm -rf "$work" "$out/runs"/*/.*.new "$out/.machine.new"
	work=
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

# What this machine must have, before anything is made. absent: features that are off as the kernel lacks them, as NO_X; and as X, too, if
# the series for this line of kernels leaves them out.
absent=''
left_out=$(awk -v release="$(uname -r)" '
	!/^#/ && NF {
		for (i = 3; i < 6; i += 2) {
			if ($i != "not")
				continue
			n = split($(i + 1), line, ",")
			for (k = 1; k <= n; k++)
				if (index(release, line[k]) == 1 && substr(release, length(line[k]) + 1, 1) !~ /[0-9]/)
					printf "%s ", $1
		}
	}' "$bits" 2>/dev/null)
named=$(awk '$5 != "-" { n = split($5, f, "+"); for (i = 1; i <= n; i++) { sub(/^NO_/, "", f[i]); print f[i] } }' "$schedule" | sort -u)
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
	series=$(awk '!/^#/ && NF { printf "%s ", $1 }' "$bits" 2>/dev/null)
	lacking='' lacks_bit=''
	for f in $named; do
		if has "$f"; then
			was="$was$f "
		elif has "NO_$f"; then
			was="${was}NO_$f "
		else
			case " $series" in
			*" $f "*)
				if ! turned_on "$f"; then
					absent="$absent NO_$f"
					continue
				fi
				case " $left_out" in
				*" $f "*)
					absent="$absent NO_$f $f"
					say "$f: the series for this kernel, $(uname -r), leaves it out, so it is off on all sides"
					continue ;;
				esac
				lacks_bit=1 ;;
			esac
			lacking="$lacking${lacking:+, }$f"
		fi
	done
	if [ -n "$lacking" ]; then
		why="$features: kernel $(uname -r) has no $lacking"
		if [ -n "$lacks_bit" ]; then
			way="; it has the nine patches, but not all follow-ups: apply them (scripts/apply), or compare off,nine"
			nine=$(awk '$2 == "nine" { print $1 }' "$bits")
			for f in $nine; do
				has "$f" || has "NO_$f" || way='; boot a kernel with the patches (scripts/apply)'
			done
			why=$why$way
		fi
		say "error: $why"
		exit 2
	fi
fi
for c in $cases; do
	[ "$c" = command ] && continue
	read_case "$c"
	why=$(missing)
	[ -z "$why" ] || cannot "$c: $why"
done
[ -z "$perf" ] || command -v perf >/dev/null || cannot 'perf is not installed (--perf-stat)'
if [ -e "$schedstats" ]; then
	[ -w "$schedstats" ] || cannot "$schedstats: cannot be written; run this as root"
	old_schedstats=$(cat "$schedstats")
fi
boot=$(boot_id)
noted=
# A call that was killed has left the features and the trace as its last run had them, and a note of how it found them.
if [ "$(sed -n 1p "$out/.was" 2>/dev/null)" = "$boot" ]; then
	noted=1
	read -r tracing old_tracing old_buffer <<EOF
$(sed -n 5p "$out/.was")
EOF
	trace_off
fi
[ -z "$traced" ] || find_tracing
llc_awk=$dir/llc.awk
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
rm -rf "$out/runs"/*/.*.new "$out/.machine.new" "$out"/.tmp-*
work=$out/.tmp-$$
mkdir "$work" || die "$work: cannot be made"
if [ -n "$noted" ]; then
	before=$(sed -n 2p "$out/.was")
	for f in $before; do
		case " $was " in
		*" ${f#NO_} "*|*" NO_${f#NO_} "*) was="$f $(echo " $was" | sed "s/ \(NO_\)\{0,1\}${f#NO_} / /")" ;;
		esac
	done
	old_schedstats=$(sed -n 3p "$out/.was")
fi
note
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

# For loads: the number of CPUs, and the program load.
cpus=$(online | tr , '\n' | awk -F - '{ n += $NF - $1 + 1 } END { print n }')
load=$dir/load
for c in $cases; do
	[ "$c" = command ] && continue
	read_case "$c"
	case $level in
	*x) [ "$cpus" -gt 0 ] || die "$sys/devices/system/cpu/online: not a list of CPUs" ;;
	esac
	case $needs in
	'load '*)
		if [ ! -x "$load" ]; then
			load=$work/load
			cc -O2 -pthread -o "$load" "$dir/load.c" >"$work/said" 2>&1 ||
				die "$dir/load.c: cannot be compiled: $(sed -n '/error/{p;q;}' "$work/said")"
		fi ;;
	esac
done

# one CASE PAIR POSITION SIDE FEATURES COMMAND...: a run
one()
{
	what=$1 pair=$2 position=$3 side=$4 wanted=$5
	shift 5
	new=$out/runs/$what/.$pair-$side.new
	stdout=$new/stdout
	{ mkdir -p "$out/runs/$what" && mkdir "$new"; } || die "$new: cannot be made"
	set_features "$wanted"
	if [ "$what" = command ]; then
		about="pair $pair, $side"
		printf '%s\n' "$@" >"$new/command" || die "$new: cannot be written"
		check() { :; }
		run() { execute "$@"; }
	else
		about="$what, pair $pair, $side"
		read_case "$what"
		loops=$all_loops scale=$all_scale tmp=$work/run
		[ "$pair" != 0 ] || loops=$trace_loops scale=1
		{
			printf '%s\n' "$name" ${level:+"$level"} "$amount=$([ "$amount" = loops ] && echo "$loops" || echo "$scale")" \
				>"$new/command" && rm -rf "$tmp" && mkdir "$tmp"
		} || die "$new: cannot be written"
		if [ -n "$level" ]; then
			set -- "$(tasks_of "$level")"
			echo "$1" >"$new/tasks" || die "$new: cannot be written"
		fi
	fi
	{
		echo "$what $pair $position $side $wanted" >"$new/schedule" && echo "$boot" >"$new/boot_id" &&
			online >"$new/online" && : >"$stdout" && : >"$new/stderr"
	} || die "$new: cannot be written"
	keep "$features" features
	[ "$pair" != 0 ] || trace_on
	snapshot before
	rm -f "$work/time-over"

	# In the background because a trap waits for what runs in the foreground.
	[ "$pair" != 0 ] || echo 'run begins' >"$tracing/trace_marker"
	mark begin
	now
	began=$time_now
	run "$@" >"$stdout" 2>"$new/stderr" </dev/null &
	command=$!
	if [ -n "$timeout" ]; then
		(
			pause=
			trap 'kill $pause; exit' TERM
			sleep "$timeout" &
			pause=$!
			wait $pause
			: >"$work/time-over"
			end_all "$command"
		) >/dev/null 2>&1 </dev/null &
		watch=$!
	fi
	wait "$command"
	status=$?
	now
	command=
	mark end
	if [ -n "$section" ]; then
		sections=$((sections + 1))
		echo "$sections" >"$new/section" || die "$new/section: cannot be written"
	fi
	if [ "$pair" = 0 ]; then
		echo 'run ends' >"$tracing/trace_marker"
		keep_trace || die "$new: cannot be written"
		trace_off
		note
	fi
	snapshot after
	if [ -e "$work/time-over" ]; then
		wait "$watch" 2>/dev/null
		watch='' status=124
	fi
	end_watch

	# In awk: the arithmetic of some shells has 32 bits.
	seconds=$(awk -v a="$began" -v b="$time_now" 'BEGIN { printf "%.3f", (b - a) / 1e9; exit b <= a }')
	moved=$?
	valid=yes
	if [ "$(online)" != "$(cat "$new/online")" ]; then
		valid='the online CPUs changed'
	elif [ -e "$new/features" ] && [ "$(cat "$features" 2>/dev/null)" != "$(cat "$new/features")" ]; then
		valid='somebody changed the scheduler features'
	elif [ $moved != 0 ]; then
		valid="the clock $clock did not move forward"
	elif [ "$status" = 0 ] && ! check "$@"; then
		valid="the output is not that of ${needs%% *} of package ${needs#* }"
	fi
	{
		echo "$began" >"$new/began_ns" && echo "$time_now" >"$new/ended_ns" && echo "$status" >"$new/exit" &&
			echo "$valid" >"$new/valid" && sums "$new" >"$work/sum" && cat "$work/sum" >"$new/sum" &&
			mv "$new" "$out/runs/$what/$pair-$side"
	} || die "$new: cannot be written"
	if [ "$status" -ne 0 ]; then
		failed=$((failed + 1))
		why=$(cat "$out/runs/$what/$pair-$side/stderr" "$out/runs/$what/$pair-$side/stdout" | sed -n '/./{p;q;}')
		say "$about: failed with status $status${why:+: $why}"
	elif [ "$valid" != yes ]; then
		failed=$((failed + 1))
		say "$about: not valid: $valid"
	elif [ -n "$say_runs" ]; then
		say "$about: $seconds s"
	fi
}

failed=0 sections=0
while read -r what pair position side wanted <&3; do
	is_done "$what" "$pair" "$side" || one "$what" "$pair" "$position" "$side" "$wanted" "$@" 3<&-
done 3<"$schedule"
[ "$failed" = 0 ]
