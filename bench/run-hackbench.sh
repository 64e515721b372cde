#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: run-hackbench.sh [--groups "1 2 3 4 8"] [--loops N] [--runs N] [--features A,B[,...]]
#                         [--pipe] [--threads] [--trace] [--trace-loops N] [--out DIR] [--here]
#                         [--first N] [--only LABEL]
#        run-hackbench.sh --machine SxCxT | --kernel A[,B] [OPTION...]
#        run-hackbench.sh --table DIR
#
# Runs hackbench with task stealing off and on, and prints what the scheduler did in each case.
#
# It runs hackbench on this machine if the kernel has the STEAL scheduler feature. This needs root,
# CONFIG_SCHEDSTATS, hackbench from rt-tests, and a POSIX sh and awk. To measure another machine, copy
# this file, switch.sh, hackbench-table.awk and llc.awk to one directory there.
#
# If the kernel has no STEAL, or with --machine or --kernel, it runs bench/in-sim, which simulates a
# machine.
#
#   --groups "G..."   numbers of groups, 40 tasks each (1 2 3 4 8)
#   --loops N         messages from each sender to each receiver (100000; simulated: 1000)
#   --runs N          runs of each side for each number of groups (5); 0 with --trace: only traces
#   --features A,B... what to compare. Each is a side: [LABEL=]FEATURE[+FEATURE...], with scheduler
#                     features as in sched/features. All sides are compared with the first
#                     (off=NO_STEAL,on=STEAL)
#   --pipe            send messages through pipes, not sockets (hackbench -p)
#   --threads         use threads, not processes (hackbench -T)
#   --trace           after these runs, run each side once more for each number of groups, with a trace of the scheduler;
#                     bench/report draws the CPUs and the wasted idle time from the traces. Simulated
#                     machines always do this, unless --trace-loops is 0
#   --trace-loops N   messages in the traced runs (100)
#   --out DIR         write the raw records to DIR/runs.raw and the traces to
#                     DIR/trace-GROUPS-SIDE.txt (hackbench-DATE-TIME); runs that are in DIR already
#                     are not repeated
#   --here            use this machine or fail; never simulate one
#   --table DIR       run nothing; print the tables from the records in DIR, or in a file
#
# Only on this machine:
#
#   --first N         number the runs of each side from N (1)
#   --only LABEL      run only this one of the sides
#
# Only on simulated machines, see bench/in-sim --help:
#
#   --machine, --kernel, --jobs, --quantum, --ips, --idle-exit, --append, --timeout
#
# On this machine the script changes the scheduler features, kernel.sched_schedstats and, with --trace,
# trace events. It mounts debugfs and tracefs if they are not mounted. It restores all of this when it
# ends or is interrupted.
#
# Exit status: 0; 1 error, or a run failed; 2 usage error; 3 the kernel lacks a feature, and no
# simulated machine is possible (no checkout) or allowed (--here).

prog=run-hackbench
dir=$(dirname "$0")
command_line="$0 $*"
for f in switch.sh hackbench-table.awk llc.awk; do
	[ -r "$dir/$f" ] || { echo "$prog: error: $dir/$f is missing; copy it beside $0" >&2; exit 1; }
done
# shellcheck source=bench/switch.sh
. "$dir/switch.sh"
idle_search=$debug/sched/idle_search
schedstats=$proc/sys/kernel/sched_schedstats

groups='' loops='' runs='' out='' here='' table='' wanted='' trace='' trace_loops='' first='' only='' pipe='' threads=''
machine='' kernel='' jobs='' quantum='' ips='' idle_exit='' append='' timeout=''
here_only='' sim_only='' words=$#
while [ $# -gt 0 ]; do
	case $1 in
	--groups|--loops|--runs|--out|--table|--features|--trace-loops|--first|--only|\
	--machine|--kernel|--jobs|--quantum|--ips|--idle-exit|--append|--timeout)
		[ -n "${2:-}" ] || wrong "$1 needs a value"
		case $1 in
		--groups) groups=$(echo "$2" | tr , ' ') ;;
		--loops) loops=$2 ;;
		--runs) runs=$2 ;;
		--out) out=$2 ;;
		--table) table=$2 ;;
		--features) wanted=$2 ;;
		--trace-loops) trace_loops=$2 ;;
		--first) first=$2 here_only=$1 ;;
		--only) only=$2 here_only=$1 ;;
		--machine) machine=$2 sim_only=$1 ;;
		--kernel) kernel=$2 sim_only=$1 ;;
		--jobs) jobs=$2 sim_only=$1 ;;
		--quantum) quantum=$2 sim_only=$1 ;;
		--ips) ips=$2 sim_only=$1 ;;
		--idle-exit) idle_exit=$2 sim_only=$1 ;;
		--append) append=$2 sim_only=$1 ;;
		--timeout) timeout=$2 sim_only=$1 ;;
		esac
		shift 2 ;;
	--here) here=1; shift ;;
	--trace) trace=1; shift ;;
	--pipe) pipe=-p; shift ;;
	--threads) threads=-T; shift ;;
	--help) sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) wrong "unknown option: $1" ;;
	esac
done
# 0 runs are all right if there are traces, and 0 messages in the traces if there are none.
[ "$runs$trace" = 01 ] && check_runs='' || check_runs=$runs
[ "$trace_loops$trace" = 0 ] && check_loops='' || check_loops=$trace_loops
for n in $groups ${loops:+"$loops"} ${first:+"$first"} ${check_runs:+"$check_runs"} ${check_loops:+"$check_loops"}; do
	case $n in
	*[!0-9]*|0*) wrong "not a positive number: $n" ;;
	esac
done
read_sides "${wanted:-off=NO_STEAL,on=STEAL}" "$only"
if [ -n "$table" ]; then
	[ "$words" -eq 2 ] || wrong "--table takes no other option"
	[ ! -d "$table" ] || table=$table/runs.raw
	[ -r "$table" ] || die "cannot read $table"
	awk -v same="$same" -f "$dir/hackbench-table.awk" "$table"
	exit
fi
[ -z "$here" ] || [ -z "$sim_only" ] || wrong "--here and $sim_only exclude each other"

tmp='' running='' old_schedstats='' tracing='' old_buffer=''

# trace_off: put everything of the tracing back
trace_off()
{
	[ -n "$old_buffer" ] || return
	echo 0 >"$tracing/tracing_on"
	for e in $events; do
		echo 0 >"$tracing/events/sched/$e/enable"
	done
	echo "$old_buffer" >"$tracing/buffer_size_kb"
	old_buffer=
}

# restore: put back whatever was changed; on every way out.
restore()
{
	trace_off
	if [ -n "$old_schedstats" ]; then
		echo "$old_schedstats" >"$schedstats" ||
			say "cannot restore: echo $old_schedstats >$schedstats"
		old_schedstats=
	fi
	put_back
	[ -z "$tmp" ] || rm -rf "$tmp"
	tmp=
}

# stop STATUS: a signal came. hackbench's main process ends its children when it is told to end;
# whatever is left after that is killed here.
stop()
{
	trap '' INT TERM HUP PIPE
	[ -z "$running" ] || end_all $!
	restore
	if [ -n "${session:-}" ]; then
		say "interrupted after $number of $total runs; for their table: $0 --table $out; to continue: the same command with --out $out"
	fi
	trap - EXIT
	exit "$1"
}
trap restore EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 141' PIPE
trap 'stop 143' TERM

# simulate REASON: run on a simulated machine, because this one cannot be used.
simulate()
{
	restore
	if [ -n "$here" ]; then
		say "error: $1"
		exit 3
	fi
	if [ ! -x "$dir/in-sim" ]; then
		say "error: $1; run this on a kernel with the patches, or from a checkout, which simulates a machine"
		exit 3
	fi
	[ -z "$here_only" ] || wrong "$here_only does not work on simulated machines ($1)"
	say "$1; running on a simulated machine (--here prevents this)"
	exec "$dir/in-sim" ${pipe:+--pipe} ${threads:+--threads} ${groups:+--groups "$groups"} ${loops:+--loops "$loops"} \
		${runs:+--runs "$runs"} ${out:+--out "$out"} ${wanted:+--features "$wanted"} \
		${trace_loops:+--trace-loops "$trace_loops"} ${machine:+--machine "$machine"} ${kernel:+--kernel "$kernel"} \
		${jobs:+--jobs "$jobs"} ${quantum:+--quantum "$quantum"} ${ips:+--ips "$ips"} \
		${idle_exit:+--idle-exit "$idle_exit"} ${append:+--append "$append"} ${timeout:+--timeout "$timeout"}
}

[ -z "$machine$kernel" ] || simulate "${machine:+--machine $machine }${kernel:+--kernel $kernel }given"
find_features simulate
[ -z "$sim_only" ] || wrong "$sim_only is for simulated machines only; name one with --machine"
[ -z "$trace_loops" ] || [ -n "$trace" ] || wrong "--trace-loops needs --trace"

[ -r "$proc/schedstat" ] || die "$proc/schedstat: no such file; the kernel needs CONFIG_SCHEDSTATS=y"
version=$(sed -n 's/^version //p' "$proc/schedstat")
case $version in
15|16|17) ;;
*) die "$proc/schedstat: version ${version:-unknown}; only 15, 16 and 17 are supported" ;;
esac
command -v hackbench >/dev/null || die "hackbench is not installed: apt-get install rt-tests"

tmp=$(mktemp -d) || die "mktemp -d failed"
# Other programs of this name take other arguments, and older ones ignore these.
hackbench -g 1 -l 1 >"$tmp/out" 2>&1 </dev/null
if ! grep -q 'with 1 groups' "$tmp/out" || ! grep -q '^Time: ' "$tmp/out"; then
	sed 's/^/hackbench: /' "$tmp/out" >&2
	die "$(command -v hackbench): 'hackbench -g 1 -l 1' does not work as in rt-tests; is it another program? apt-get install rt-tests"
fi

groups=${groups:-1 2 3 4 8} loops=${loops:-100000} runs=${runs:-5}
trace_loops=${trace_loops:-100} first=${first:-1}
out=${out:-hackbench-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$out" || die "cannot make the directory $out (--out)"
raw=$out/runs.raw
begin_raw "$raw"
# The clock for %busy and %find, read beside the counters.
find_clock

# first FILE...: what the first of the files says, or -
first()
{
	for f; do
		[ -r "$f" ] && cat "$f" && return
	done
	echo -
}

# topology: a line for each CPU that schedstat lists. The LLC is the scheduler's if it tells
# (sched_verbose), else the widest cache of those in sysfs.
topology()
{
	grep -sH SD_SHARE_LLC "$debug"/sched/domains/cpu*/domain*/flags | cat - "$proc/schedstat" |
		awk -f "$dir/llc.awk" >"$tmp/llc"
	sed -n 's/^cpu\([0-9]*\) .*/\1/p' "$proc/schedstat" | while read -r c; do
		d=$sys/devices/system/cpu/cpu$c
		llc=- level=0
		shared=$(sed -n "s/^cpu$c //p" "$tmp/llc")
		for i in "$d"/cache/index*; do
			l=$(first "$i/level")
			[ "$l" != - ] && [ "$l" -gt "$level" ] && level=$l llc=$(first "$i/shared_cpu_list")
		done
		llc=${shared:-$llc}
		node=-
		for i in "$d"/node[0-9]*; do
			[ -e "$i" ] && node=${i##*/node}
		done
		echo "cpu $c package $(first "$d/topology/physical_package_id")" \
			"core $(first "$d/topology/core_id")" \
			"threads $(first "$d/topology/core_cpus_list" "$d/topology/thread_siblings_list")" \
			"llc $llc node $node"
	done
}

describe()
{
	topology >"$tmp/topology"
	llcs=$(sed 's/.* llc \([^ ]*\) .*/\1/' "$tmp/topology" | sort -u | wc -l | tr -d ' ')
	! grep -q 'llc -' "$tmp/topology" || llcs=unknown
	hversion=$(hackbench --help 2>/dev/null | sed -n '/^hackbench V/{p;q;}')
	package=$(dpkg-query -W -f 'rt-tests ${Version}' rt-tests 2>/dev/null)
	echo "begin session $session"
	describe_machine
	echo "hackbench hackbench -g GROUPS -l $loops${pipe:+ $pipe}${threads:+ $threads}"
	echo "hackbench_version ${package:-${hversion:-unknown}}"
	echo "schedstats_before $was_schedstats"
	echo "schedstat $version"
	echo "cpus $(wc -l <"$tmp/topology" | tr -d ' ')"
	echo "llcs $llcs"
	sed 's/^/topology /' "$tmp/topology"
	echo "end session"
}

# snapshot: of the counters. The clock is read between the two and the run, so that the time that
# reading the counters takes is not the run's.
snapshot()
{
	echo "online $(online)"
	echo "features $(cat "$features")"
	sed 's/^/schedstat /' "$proc/schedstat"
	[ ! -r "$idle_search" ] || sed 's/^/idle_search /' "$idle_search"
}

# one GROUPS SIDE: a run and its record
one()
{
	set_side "$2"
	snapshot >"$tmp/before"
	now
	begin=$time_now
	# In the background because a trap waits for what runs in the foreground.
	running=1
	hackbench -g "$1" -l "$loops" ${pipe:+"$pipe"} ${threads:+"$threads"} >"$tmp/out" 2>&1 </dev/null &
	wait $!
	status=$?
	now
	running=
	snapshot >"$tmp/after"

	time=$(sed -n 's/^Time: *\([0-9.]*\)$/\1/p' "$tmp/out")
	valid=yes
	if [ -z "$time" ]; then
		valid='hackbench printed no time'
	elif ! grep -q "with $1 groups" "$tmp/out"; then
		valid="hackbench did not run $1 groups"
	elif [ "$(grep '^online' "$tmp/before")" != "$(grep '^online' "$tmp/after")" ]; then
		valid='the online CPUs changed'
	elif [ "$(grep '^features' "$tmp/before")" != "$(grep '^features' "$tmp/after")" ]; then
		valid='somebody changed the scheduler features'
	fi
	{
		echo "begin run $session"
		echo "number $((number + 1))"
		echo "total $total"
		echo "pair $pair"
		echo "groups $1"
		echo "side $2"
		echo "command hackbench -g $1 -l $loops${pipe:+ $pipe}${threads:+ $threads}"
		echo "date $(date -u +%Y-%m-%dT%H:%M:%SZ)"
		echo "exit $status"
		echo "time ${time:--}"
		echo "valid $valid"
		sed 's/^/output /' "$tmp/out"
		echo "before clock $begin"
		sed 's/^/before /' "$tmp/before"
		echo "after clock $time_now"
		sed 's/^/after /' "$tmp/after"
		echo "end run"
	} >"$tmp/record"
	cat "$tmp/record" >>"$raw" || die "cannot append to $raw"

	number=$((number + 1)) work=$((work + $1))
	left=$((($(date +%s) - start) * (all_work - work) / work))
	if [ $status -ne 0 ]; then
		bad=$((bad + 1))
		say "run $number/$total: $1 groups, $2: hackbench failed with status $status: $(tail -n 1 "$tmp/out")"
	elif [ "$valid" != yes ]; then
		bad=$((bad + 1))
		say "run $number/$total: $1 groups, $2: not valid: $valid"
	else
		say "run $number/$total: $1 groups, $2: $time s; about $left s left"
	fi
}

events='sched_switch sched_wakeup sched_wakeup_new sched_migrate_task sched_process_exit'

trace_on()
{
	for tracing in "$sys/kernel/tracing" "$debug/tracing"; do
		[ ! -e "$tracing/tracing_on" ] || break
	done
	if [ ! -e "$tracing/tracing_on" ]; then
		tracing=$sys/kernel/tracing
		mount -t tracefs tracefs "$tracing" 2>/dev/null ||
			die "$tracing: no tracefs; the kernel needs CONFIG_FTRACE and trace events for --trace"
		mounted="$mounted $tracing"
	fi
	[ -e "$tracing/events/sched/sched_switch/enable" ] || die "$tracing: no scheduler trace events, for --trace"
	for e in $events; do
		[ "$(cat "$tracing/events/sched/$e/enable")" = 0 ] ||
			die "$tracing/events/sched/$e is in use; --trace needs the trace for itself"
	done
	# with "(expanded: N)" while the buffer is still the small one of the boot
	old_buffer=$(sed 's/.*expanded: \([0-9]*\).*/\1/' "$tracing/buffer_size_kb")
	echo 0 >"$tracing/tracing_on"
	echo 4096 >"$tracing/buffer_size_kb"
	for e in $events; do
		echo 1 >"$tracing/events/sched/$e/enable"
	done
}

# traced GROUPS SIDE: a run with the trace points on; its times say nothing.
traced()
{
	set_side "$2"
	echo >"$tracing/trace"
	echo 1 >"$tracing/tracing_on"
	echo 'hackbench begins' >"$tracing/trace_marker"
	running=1
	hackbench -g "$1" -l "$trace_loops" ${pipe:+"$pipe"} ${threads:+"$threads"} >"$tmp/out" 2>&1 </dev/null &
	wait $!
	status=$?
	running=
	echo 'hackbench ends' >"$tracing/trace_marker"
	echo 0 >"$tracing/tracing_on"
	[ $status -eq 0 ] || die "traced run, $1 groups, $2: hackbench failed with status $status: $(tail -n 1 "$tmp/out")"
	cat "$tracing/trace" >"$tmp/trace"
	{
		echo "#: session $session"
		echo "#: groups $1"
		echo "#: side $2"
		echo "#: loops $trace_loops"
		echo "#: cpus $(wc -l <"$tmp/topology" | tr -d ' ')"
		echo "#: clock $(sed 's/.*\[\(.*\)\].*/\1/' "$tracing/trace_clock")"
		sed -n 's/^.* \([0-9.]*\): tracing_mark_write: hackbench begins$/#: begin \1/p
			s/^.* \([0-9.]*\): tracing_mark_write: hackbench ends$/#: end \1/p' "$tmp/trace"
		echo "#: overruns $(cat "$tracing"/per_cpu/cpu*/stats |
			awk '/^(overrun|commit overrun|dropped events):/ { n += $NF } END { print n + 0 }')"
		cat "$tmp/trace"
	} >"$out/.trace" || die "cannot write $out/.trace"
	mv "$out/.trace" "$out/trace-$1-$2.txt" || die "cannot write $out/trace-$1-$2.txt"
	rm "$tmp/trace"
	say "traced run, $1 groups, $2: done"
}

was_schedstats=$(cat "$schedstats") || die "$schedstats: cannot be read"
if [ "$was_schedstats" != 1 ]; then
	old_schedstats=$was_schedstats
	echo 1 >"$schedstats" || die "$schedstats: cannot be written"
fi
session=${STEAL_SESSION:-$(date -u +%Y%m%d-%H%M%S)-$$}
describe >"$tmp/session"

compare_sessions "$raw" "$tmp/session"
find_done "$raw" groups

# shellcheck disable=SC2317 # to_do calls them
count() { total=$((total + 1)) all_work=$((all_work + $2)); }
# shellcheck disable=SC2317
run() { one "$2" "$3"; }

number=0 work=0 bad=0 total=0 all_work=0
# shellcheck disable=SC2086 # a list of numbers
to_do count "$first" "$runs" "$only" $groups
if [ "$runs" -eq 0 ]; then
	:
elif [ $total -gt 0 ]; then
	cat "$tmp/session" >>"$raw" || die "cannot append to $raw"
	say "$total runs; raw records go to $raw"
	start=$(date +%s)
	# shellcheck disable=SC2086
	to_do run "$first" "$runs" "$only" $groups
else
	say "all runs are in $raw already"
fi
if [ -n "$trace" ]; then
	trace_on
	for g in $groups; do
		for s in $sides; do
			[ "${s%%=*}" = "${only:-${s%%=*}}" ] || continue
			[ -e "$out/trace-$g-${s%%=*}.txt" ] || traced "$g" "${s%%=*}"
		done
	done
fi
restore
[ "$runs" -eq 0 ] || awk -v same="$same" -f "$dir/hackbench-table.awk" "$raw" || bad=$((bad + 1))
[ $bad -eq 0 ] || die "$bad of $total runs failed or are not valid; see $raw"
