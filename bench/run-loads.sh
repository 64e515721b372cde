#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: run-loads.sh [--loads "LOAD..."] [--runs N] [--scale N] [--features A,B[,...]] [--out DIR]
#                     [--first N] [--only LABEL]
#        run-loads.sh --list
#
# Runs loads other than hackbench on this machine, with task stealing off and on, and keeps what each of them
# measures. bench/loads-table makes a table of the results.
#
# It needs root, a kernel with the STEAL scheduler feature, a POSIX sh, awk, a sleep that accepts fractions of a second,
# and the programs of the loads: perf (package linux-perf), tbench (dbench), sysbench, stress-ng, and load. If load is
# missing, the script compiles it from load.c with cc. To measure another machine, copy this file, switch.sh, and load.c or
# load to one directory there.
#
#   --loads "LOAD..." what to run (default: the loads of --list whose program is installed). Each is one of:
#                       pipe          perf bench sched pipe: two tasks that take turns
#                       hogs-L        the same beside L tasks that only compute
#                       messaging-L   perf bench sched messaging: L tasks, rounded up to groups of 40
#                       latency-L     requests to L workers (load wake)
#                       tbench-L      tbench: L clients and as many servers over loopback
#                       threads-L     sysbench threads: L threads that yield and share 8 mutexes
#                       mutex-L       sysbench mutex: L threads that share 64 mutexes
#                       switch-L      stress-ng --switch: L tasks in pairs
#                       fork-L        rounds of L processes that compute (load fork)
#                       barrier-L     rounds of L threads that compute and meet at a barrier (load fork --barrier)
#                       nice-L        L tasks of each of the nice levels 0, 5 and 10, and sleepers (load nice)
#                     L is a number of tasks, or a multiple of the number of CPUs, such as 0.5x or 2x. A name
#                     without -L stands for the loads of --list with this name
#   --runs N          runs of each side and load (5)
#   --scale N         amount of work in each run (50: some seconds on a real machine). 1 is for simulated machines,
#                     whose CPUs execute 10^9 instructions per second: about 0.1 s there
#   --features A,B... what to compare. Each is a side: [LABEL=]FEATURE[+FEATURE...], with scheduler features as in
#                     sched/features. All sides are compared with the first (off=NO_STEAL,on=STEAL)
#   --out DIR         write the raw records to DIR/loads.raw (loads-DATE-TIME); runs that are in DIR already are not
#                     repeated
#   --first N         number the runs of each side from N (1)
#   --only LABEL      run only this one of the sides
#   --list            run nothing; print the default loads, the program of each, and what is missing for it
#
# The script changes the scheduler features, and mounts debugfs if it is not mounted. It restores both when it ends or is
# interrupted.
#
# Exit status: 0; 1 error, or a run failed; 2 usage error; 3 the kernel lacks a scheduler feature.

prog=run-loads
dir=$(dirname "$0")
command_line="$0 $*"
[ -r "$dir/switch.sh" ] || { echo "$prog: error: $dir/switch.sh is missing; copy it beside $0" >&2; exit 1; }
# shellcheck source=bench/switch.sh
. "$dir/switch.sh"

all='pipe hogs-1x messaging-2x messaging-4x latency-0.5x latency-1x latency-2x tbench-1 tbench-0.5x tbench-1x tbench-2x
	threads-1x threads-2x mutex-1x mutex-2x switch-0.5x switch-1x switch-2x fork-1x fork-1.5x
	barrier-1x barrier-1.5x nice-1x'

loads='' runs='' scale='' wanted='' out='' first='' only='' list=''
while [ $# -gt 0 ]; do
	case $1 in
	--loads|--runs|--scale|--features|--out|--first|--only)
		[ -n "${2:-}" ] || wrong "$1 needs a value"
		case $1 in
		--loads) loads=$(echo "$2" | tr , ' ') ;;
		--runs) runs=$2 ;;
		--scale) scale=$2 ;;
		--features) wanted=$2 ;;
		--out) out=$2 ;;
		--first) first=$2 ;;
		--only) only=$2 ;;
		esac
		shift 2 ;;
	--list) list=1; shift ;;
	--help) sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) wrong "unknown option: $1" ;;
	esac
done
for n in ${runs:+"$runs"} ${scale:+"$scale"} ${first:+"$first"}; do
	case $n in
	*[!0-9]*|0*) wrong "not a positive number: $n" ;;
	esac
done
runs=${runs:-5} scale=${scale:-50} first=${first:-1}
read_sides "${wanted:-off=NO_STEAL,on=STEAL}" "$only"

# needs LOAD: the program it needs, in $program, and the package that has it, in $package
needs()
{
	case $1 in
	pipe|hogs*|messaging*) program=perf package=linux-perf ;;
	tbench*) program=tbench package=dbench ;;
	threads*|mutex*) program=sysbench package=sysbench ;;
	switch*) program=stress-ng package=stress-ng ;;
	*) program=load package= ;;
	esac
}

levelled='hogs|messaging|latency|tbench|threads|mutex|switch|fork|barrier|nice'
level='[1-9][0-9]*|(0|[1-9][0-9]*)([.][0-9]+)?x'
# Each family as its members of the default; others as they are.
named=${loads:+1} chosen=
for l in ${loads:-$all}; do
	members=
	for a in $all; do
		[ "${a%%-*}" != "$l" ] || members="$members $a"
	done
	for m in ${members:-$l}; do
		echo "$m" | grep -q -x -E "pipe|($levelled)-($level)" || wrong "not a load: $l (--loads)"
		case " $chosen " in
		*" $m "*) ;;
		*) chosen="$chosen $m" ;;
		esac
	done
done

tmp='' running=''

# restore: put back whatever was changed; on every way out.
restore()
{
	put_back
	[ -z "$tmp" ] || rm -rf "$tmp"
	tmp=
}

# stop STATUS: a signal came.
stop()
{
	trap '' INT TERM HUP PIPE
	[ -z "$running" ] || end_all $!
	restore
	[ -z "${total:-}" ] || say "interrupted after $number of $total runs; to continue: the same command with --out $out"
	trap - EXIT
	exit "$1"
}
trap restore EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 141' PIPE
trap 'stop 143' TERM

tmp=$(mktemp -d) || die "mktemp -d failed"
load=$dir/load
if [ ! -x "$load" ] && [ -r "$dir/load.c" ] && command -v cc >/dev/null; then
	load=$tmp/load
	cc -O2 -pthread -o "$load" "$dir/load.c" >&2 || die "$dir/load.c: cannot be compiled (see above)"
fi
# missing LOAD: says what is missing for it; fails if nothing is
missing()
{
	needs "$1"
	case $program in
	load) [ ! -x "$load" ] && echo "no program $dir/load, and no load.c and cc to compile it" ;;
	*) ! command -v "$program" >/dev/null && echo "$program is not installed: apt-get install $package" ;;
	esac
}
if [ -n "$list" ]; then
	for l in $chosen; do
		needs "$l"
		echo "$l $program $(missing "$l" || echo here)"
	done
	exit
fi
loads=
for l in $chosen; do
	if why=$(missing "$l"); then
		[ -z "$named" ] || die "$l: $why"
		say "not run: $l: $why"
	else
		loads="$loads $l"
	fi
done
[ -n "$loads" ] || die "the programs of all loads are missing (see above)"

# unfit REASON: this machine cannot do it.
unfit()
{
	say "error: $1; run this on a kernel with the patches, or bench/in-sim-loads, which simulates a machine"
	exit 3
}
find_features unfit

out=${out:-loads-$(date +%Y%m%d-%H%M%S)}
mkdir -p "$out" || die "cannot make the directory $out (--out)"
raw=$out/loads.raw
begin_raw "$raw"
find_clock
cpus=$(online | tr , '\n' | awk -F - '{ n += $NF - $1 + 1 } END { print n }')
[ "${cpus:-0}" -gt 0 ] || die "$sys/devices/system/cpu/online: not a list of CPUs"

describe()
{
	echo "begin session $session"
	describe_machine
	echo "cpus $cpus"
	echo "scale $scale"
	for p in $(for l in $loads; do needs "$l"; echo "$program"; done | sort -u); do
		case $p in
		perf) echo "program $(perf --version 2>&1 | sed q)" ;;
		tbench) echo "program tbench $(tbench --help 2>&1 | sed -n 's/^dbench //p')" ;;
		sysbench|stress-ng) echo "program $("$p" --version 2>&1 | sed q)" ;;
		esac
	done
	echo "end session"
}

# Each load is a function of its level's number of tasks, which runs it in the background, so that a trap does not wait for
# its end; what it prints goes to $tmp/out, its metrics to $tmp/metrics.

# background COMMAND...: run it, and wait; its status is in $status
background()
{
	ran=$*
	running=1
	"$@" >"$tmp/out" 2>&1 </dev/null &
	wait $!
	status=$?
	running=
}

# figure NAME UNIT BETTER SED: the metric is what this sed script finds first in the output
figure()
{
	value=$(sed -n "$4" "$tmp/out" | sed q)
	[ -z "$value" ] || echo "metric $1 $2 $3 $value" >>"$tmp/metrics"
}

run_pipe()
{
	background perf bench sched pipe -l $((10000 * scale))
	figure time us/op lower 's/^ *\([0-9.]*\) usecs\/op$/\1/p'
}

# pipe_beside HOGS LOOPS: what perf says while so many tasks compute
pipe_beside()
{
	hogs='' left=$1
	while [ "$left" -gt 0 ]; do
		while :; do :; done &
		hogs="$hogs $!" left=$((left - 1))
	done
	perf bench sched pipe -l "$2"
	result=$?
	# shellcheck disable=SC2086 # a list of numbers
	kill $hogs && wait $hogs
	return $result
}

run_hogs()
{
	background pipe_beside "$1" $((100 * scale))
	ran="perf bench sched pipe -l $((100 * scale)), beside $1 hogs"
	figure time us/op lower 's/^ *\([0-9.]*\) usecs\/op$/\1/p'
}

run_messaging()
{
	background perf bench sched messaging -g $((($1 + 39) / 40)) -l $((2000 * scale))
	figure time s lower 's/^ *Total time: \([0-9.]*\) \[sec\]$/\1/p'
}

run_latency()
{
	background "$load" wake --workers "$1" --requests $((400 * cpus * scale)) --seed "$pair"
	grep '^metric ' "$tmp/out" >>"$tmp/metrics"
}

run_threads()
{
	background sysbench threads --threads="$1" --thread-locks=8 --thread-yields=100 --time=0 \
		--events=$((250 * cpus * scale)) run
	figure time s lower 's/^ *total time: *\([0-9.]*\)s$/\1/p'
}

run_mutex()
{
	background sysbench mutex --threads="$1" --mutex-num=64 --mutex-loops=1000 \
		--mutex-locks=$((25000 * cpus * scale / $1)) run
	figure time s lower 's/^ *total time: *\([0-9.]*\)s$/\1/p'
}

run_switch()
{
	background stress-ng --switch $((($1 + 1) / 2)) --switch-ops $((5000 * cpus * scale)) --metrics-brief
	# bogo ops, real time, user and system time, operations a second of real time
	figure rate switches/s higher 's/^.* switch  *[0-9][0-9]*  *[0-9.]*  *[0-9.]*  *[0-9.]*  *\([0-9.]*\)  *[0-9.]*$/\1/p'
}

run_fork()
{
	background "$load" fork --tasks "$1" --rounds $((20 * scale)) --work 1000000 --seed "$pair"
	grep '^metric ' "$tmp/out" >>"$tmp/metrics"
}

run_barrier()
{
	background "$load" fork --barrier --tasks "$1" --rounds $((50 * scale)) --work 500000 --seed "$pair"
	grep '^metric ' "$tmp/out" >>"$tmp/metrics"
}

run_nice()
{
	background "$load" nice --tasks "$1" --total $((50000000 * cpus * scale)) --seed "$pair"
	grep '^metric ' "$tmp/out" >>"$tmp/metrics"
}

# What tbench's clients do, in the proportions of a file server's day that dbench ships as client.txt.
tbench_load()
{
	cat <<'EOF'
NTCreateX "\clients\client1\a" 0x40 0x1 10001 NT_STATUS_OK
ReadX 10001 0 4096 4096 NT_STATUS_OK
ReadX 10001 4096 4096 4096 NT_STATUS_OK
QUERY_PATH_INFORMATION "\clients\client1\a" 1004 NT_STATUS_OK
ReadX 10001 8192 4096 4096 NT_STATUS_OK
QUERY_PATH_INFORMATION "\clients\client1\b" 1004 NT_STATUS_OK
NTCreateX "\clients\client1\b" 0x40 0x1 10002 NT_STATUS_OK
WriteX 10002 0 65536 65536 NT_STATUS_OK
ReadX 10001 0 61440 61440 NT_STATUS_OK
FIND_FIRST "\clients\client1\*" 260 1366 11 NT_STATUS_OK
WriteX 10002 65536 4096 4096 NT_STATUS_OK
QUERY_PATH_INFORMATION "\clients\client1\c" 1004 NT_STATUS_OK
WriteX 10002 69632 1 1 NT_STATUS_OK
QUERY_FS_INFORMATION 259 NT_STATUS_OK
ReadX 10001 0 8192 8192 NT_STATUS_OK
Close 10002 NT_STATUS_OK
Close 10001 NT_STATUS_OK
EOF
}

# poll SECONDS COMMAND...: until it succeeds
poll()
{
	tries=$(($1 * 50))
	shift
	until "$@"; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return
		sleep 0.02
	done
}

# The port of tbench_srv, 7003, is in use: here, in state LISTEN, in any state
listens() { grep -q '^ *[0-9]*: [0-9A-F]*:1B5B [0-9A-F]*:0000 0A ' "$proc/net/tcp" "$proc/net/tcp6" 2>/dev/null; }
released() { grep -q '^releasing clients' "$tmp/tbench"; }

# tbench counts for whole seconds, and warms up for a fifth of the time. So it is started for a day, what has gone over the
# loopback device is counted for as long as wanted, and both sides are killed.
serve_clients()
{
	tbench_load >"$tmp/tbench_load"
	tbench_srv >"$tmp/server" 2>&1 &
	server=$!
	poll 10 listens || { cat "$tmp/server"; echo "tbench_srv does not listen on port 7003"; return 1; }
	tbench -c "$tmp/tbench_load" -t 86400 "$1" 127.0.0.1 >"$tmp/tbench" 2>&1 &
	client=$!
	poll 60 released || { cat "$tmp/tbench"; echo "tbench does not begin"; kill $server $client; return 1; }
	sleep "$2"
	loopback && now
	from_bytes=$bytes from=$time_now
	sleep "$3"
	loopback && now
	alive=1
	kill -0 $client && kill -0 $server || alive=
	# shellcheck disable=SC2046 # lists of numbers
	kill -KILL $(descendants $client) $(descendants $server) $client $server
	wait $client $server
	cat "$tmp/tbench"
	[ -n "$alive" ] || { echo "tbench or its server ended early"; return 1; }
	awk -v bytes="$((bytes - from_bytes))" -v ns="$((time_now - from))" 'BEGIN { printf "metric rate MB/s higher %.3f\n", 1e3 * bytes / ns }'
}

# loopback: how many bytes have gone over it, in $bytes
loopback()
{
	bytes=
	while read -r name received rest; do
		[ "$name" != lo: ] || bytes=$received
	done <"$proc/net/dev"
	[ -n "$bytes" ] || { echo "no loopback device"; return 1; }
}

run_tbench()
{
	! listens || die "port 7003 is in use; tbench's server needs it"
	background serve_clients "$1" "$(awk -v s="$scale" 'BEGIN { print s * 0.01 }')" "$(awk -v s="$scale" 'BEGIN { print s * 0.05 }')"
	ran="tbench -c ... $1 127.0.0.1"
	grep '^metric ' "$tmp/out" >>"$tmp/metrics"
}

# tasks_of LOAD: how many its level stands for, at least 1
tasks_of()
{
	level=${1#*-}
	case $level in
	*x) awk -v x="${level%x}" -v n="$cpus" 'BEGIN { t = int(x * n + 0.5); print t < 1 ? 1 : t }' ;;
	*) echo "$level" ;;
	esac
}

# one PAIR LOAD SIDE: a run and its record
one()
{
	pair=$1
	set_side "$3"
	before="$(online) $(cat "$features")"
	: >"$tmp/metrics"
	now
	began=$time_now
	"run_${2%%-*}" "$(tasks_of "$2")"
	now
	valid=yes
	if [ ! -s "$tmp/metrics" ]; then
		valid='it printed no result'
	elif [ "$before" != "$(online) $(cat "$features")" ]; then
		valid='somebody changed the online CPUs or the scheduler features'
	fi
	{
		echo "begin run $session"
		echo "number $((number + 1))"
		echo "total $total"
		echo "pair $pair"
		echo "load $2"
		echo "side $3"
		echo "command $ran"
		echo "date $(date -u +%Y-%m-%dT%H:%M:%SZ)"
		echo "exit $status"
		echo "valid $valid"
		echo "took_ns $((time_now - began))"
		cat "$tmp/metrics"
		sed 's/^/output /' "$tmp/out"
		echo "end run"
	} >"$tmp/record"
	cat "$tmp/record" >>"$raw" || die "cannot append to $raw"
	number=$((number + 1))
	if [ "$status" -ne 0 ]; then
		valid="status $status: $(tail -n 1 "$tmp/out")"
	fi
	if [ "$valid" != yes ]; then
		bad=$((bad + 1))
		say "run $number/$total: $2, $3: failed: $valid"
	else
		say "run $number/$total: $2, $3: $(sed 's/^metric \([^ ]*\) \([^ ]*\) [^ ]* \(.*\)/\1 \3 \2/; q' "$tmp/metrics")"
	fi
}

session=${STEAL_SESSION:-$(date -u +%Y%m%d-%H%M%S)-$$}
describe >"$tmp/session"
compare_sessions "$raw" "$tmp/session"
find_done "$raw" load

# shellcheck disable=SC2317 # to_do calls it
count() { total=$((total + 1)); }
number=0 bad=0 total=0
# shellcheck disable=SC2086 # a list of words
to_do count "$first" "$runs" "$only" $loads
if [ $total -gt 0 ]; then
	cat "$tmp/session" >>"$raw" || die "cannot append to $raw"
	say "$total runs; raw records go to $raw"
	# shellcheck disable=SC2086
	to_do one "$first" "$runs" "$only" $loads
else
	say "all runs are in $raw already"
fi
restore
[ $bad -eq 0 ] || die "$bad of $total runs failed or are not valid; see $raw"
[ ! -x "$dir/loads-table" ] || say "to make the table: $dir/loads-table $out"
