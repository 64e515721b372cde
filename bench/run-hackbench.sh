#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: run-hackbench.sh [--groups "1 2 3 4 8"] [--loops N] [--runs N] [--out FILE] [--here]
#        run-hackbench.sh --table FILE
#
# Runs hackbench with task stealing off and on, on the machine it is called on, and prints what
# the scheduler did in each case. Needs root, a kernel with the STEAL scheduler feature and with
# CONFIG_SCHEDSTATS, and hackbench from rt-tests; apart from these only a POSIX sh and awk. This
# file and hackbench-table.awk beside it are all that has to be copied to the machine.
# Where the kernel has no STEAL it builds one that has and runs there, in QEMU (bench/in-qemu).
#
#   --groups "G..."  numbers of groups, 40 tasks each (1 2 3 4 8)
#   --loops N        messages that each sender passes to each receiver (100000)
#   --runs N         runs of each side and group (5)
#   --out FILE       append the raw records to FILE (hackbench-DATE-TIME.raw)
#   --here           never go to QEMU
#   --table FILE     run nothing; print the tables from the records in FILE
#
# It changes the STEAL feature, kernel.sched_schedstats and, where debugfs is not mounted, mounts
# it. All are put back when it ends or is interrupted.
#
# Exit status: 0; 1 error, or a run failed; 2 usage; 3 no STEAL here (--here only).

LC_ALL=C
export LC_ALL
set -u

# The two variables are for the tests, which have their own files there.
proc=${STEAL_PROC:-/proc}
sys=${STEAL_SYS:-/sys}
debug=$sys/kernel/debug
features=$debug/sched/features
idle_search=$debug/sched/idle_search
schedstats=$proc/sys/kernel/sched_schedstats
dir=$(dirname "$0")

say() { printf 'run-hackbench: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
wrong() { say "error: $*; see --help"; exit 2; }

command_line="$0 $*"
nl='
'
groups='' loops='' runs='' out='' here='' table=''
while [ $# -gt 0 ]; do
	case $1 in
	--groups|--loops|--runs|--out|--table)
		[ $# -ge 2 ] || wrong "$1 needs a value"
		[ -n "$2" ] || wrong "$1 needs a value"
		case $1 in
		--groups) groups=$2 ;;
		--loops) loops=$2 ;;
		--runs) runs=$2 ;;
		--out) out=$2 ;;
		--table) table=$2 ;;
		esac
		shift 2 ;;
	--here) here=1; shift ;;
	--help) sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
	*) wrong "unknown option: $1" ;;
	esac
done
for n in $groups ${loops:+"$loops"} ${runs:+"$runs"}; do
	case $n in
	*[!0-9]*|0*) wrong "not a positive number: $n" ;;
	esac
done

[ -r "$dir/hackbench-table.awk" ] || die "$dir/hackbench-table.awk is missing; copy it beside $0"
if [ -n "$table" ]; then
	[ -r "$table" ] || die "cannot read $table"
	awk -f "$dir/hackbench-table.awk" "$table"
	exit
fi

tmp='' running='' old_steal='' old_schedstats='' mounted=''

# restore: put back whatever was changed; on every way out.
restore()
{
	if [ -n "$old_steal" ]; then
		{ echo "$old_steal" >"$features"; } 2>/dev/null
		steal_is "$old_steal" || say "cannot restore: echo $old_steal >$features"
		old_steal=
	fi
	if [ -n "$old_schedstats" ]; then
		echo "$old_schedstats" >"$schedstats" ||
			say "cannot restore: echo $old_schedstats >$schedstats"
		old_schedstats=
	fi
	if [ -n "$mounted" ]; then
		umount "$debug" || say "cannot restore: umount $debug"
		mounted=
	fi
	[ -z "$tmp" ] || rm -rf "$tmp"
	tmp=
}

# stop STATUS: a signal came. hackbench's main process ends its children when it is told to end;
# whatever is left after that is killed here. They are its direct children, and they share the
# process group with this script, so they are found by their parent.
stop()
{
	trap '' INT TERM HUP PIPE
	if [ -n "$running" ]; then
		hackbench=$!
		children=$(cat /proc/[0-9]*/stat 2>/dev/null |
			awk -v p="$hackbench" '{ pid = $1; sub(/.*\) /, ""); if ($2 == p) print pid }')
		kill "$hackbench"
		sleep 1
		# shellcheck disable=SC2086 # a list of numbers
		kill -KILL "$hackbench" $children
		wait "$hackbench"
	fi 2>/dev/null
	restore
	if [ -n "${session:-}" ]; then
		say "interrupted after $number of $total runs; their table: $0 --table $out"
	fi
	trap - EXIT
	exit "$1"
}
trap restore EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 141' PIPE
trap 'stop 143' TERM

# steal_is STEAL|NO_STEAL: is the feature in that state?
steal_is()
{
	line=$(cat "$features" 2>/dev/null)
	case " $line " in
	*" $1 "*) return 0 ;;
	esac
	return 1
}

set_steal()
{
	{ echo "$1" >"$features"; } 2>/dev/null
	steal_is "$1" || die "$features does not show $1 after writing it (is debugfs locked down?)"
}

# no_steal REASON: this machine cannot do it; QEMU can.
no_steal()
{
	restore
	if [ -n "$here" ]; then
		say "error: $1"
		exit 3
	fi
	if [ ! -x "$dir/in-qemu" ]; then
		say "error: $1; run this on a kernel with the patches, or from a checkout, which boots one in QEMU"
		exit 3
	fi
	say "$1; a kernel with it is built and booted in QEMU (to prevent that: --here)"
	exec "$dir/in-qemu" ${groups:+--groups "$groups"} ${loops:+--loops "$loops"} \
		${runs:+--runs "$runs"} ${out:+--out "$out"}
}

[ -d "$debug" ] || no_steal "$debug: no such directory, so this kernel has no debugfs and no scheduler features"
[ -w "$debug" ] || no_steal "$debug is not writable (not root?), so STEAL cannot be looked for on this kernel"
if [ ! -e "$features" ]; then
	if mount -t debugfs debugfs "$debug" 2>/dev/null; then
		mounted=1
	fi
fi
[ -e "$features" ] || no_steal "$features: no such file, so this kernel has no scheduler features to switch"
if steal_is STEAL; then
	was=STEAL
elif steal_is NO_STEAL; then
	was=NO_STEAL
else
	no_steal "$features: kernel $(uname -r) has no STEAL"
fi

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
	die "$(command -v hackbench): 'hackbench -g 1 -l 1' did not run as that of rt-tests does: apt-get install rt-tests"
fi

groups=${groups:-1 2 3 4 8} loops=${loops:-100000} runs=${runs:-5}
out=${out:-hackbench-$(date +%Y%m%d-%H%M%S).raw}
# A record that an earlier session could not finish may lack its newline.
last=$(tail -c 1 "$out" 2>/dev/null)
printf '%s' "${last:+$nl}" >>"$out" || die "cannot write $out"

# The clock for %busy and %find, read beside the counters: that of timer_list counts ns, uptime 10 ms.
clock=timer_list
[ -n "$(sed -n '/^now at /{p;q;}' "$proc/timer_list" 2>/dev/null)" ] || clock=uptime

# now: monotonic nanoseconds
now()
{
	if [ $clock = timer_list ]; then
		sed -n '/^now at /{s/^now at \([0-9]*\) .*/\1/p;q;}' "$proc/timer_list"
	else
		awk '{ printf "%.0f\n", $1 * 1e9 }' "$proc/uptime"
	fi
}

online() { cat "$sys/devices/system/cpu/online"; }

# first FILE...: what the first of the files says, or -
first()
{
	for f; do
		[ -r "$f" ] && cat "$f" && return
	done
	echo -
}

# topology: a line for each CPU that schedstat lists
topology()
{
	sed -n 's/^cpu\([0-9]*\) .*/\1/p' "$proc/schedstat" | while read -r c; do
		d=$sys/devices/system/cpu/cpu$c
		llc=- level=0
		for i in "$d"/cache/index*; do
			l=$(first "$i/level")
			[ "$l" != - ] && [ "$l" -gt "$level" ] && level=$l llc=$(first "$i/shared_cpu_list")
		done
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
	model=$(awk -F ': ' '/^model name/ { print $2; exit }' "$proc/cpuinfo" 2>/dev/null)
	llcs=$(sed 's/.* llc \([^ ]*\) .*/\1/' "$tmp/topology" | sort -u | wc -l | tr -d ' ')
	! grep -q 'llc -' "$tmp/topology" || llcs=unknown
	hversion=$(hackbench --help 2>/dev/null | sed -n '/^hackbench V/{p;q;}')
	package=$(dpkg-query -W -f 'rt-tests ${Version}' rt-tests 2>/dev/null)
	echo "begin session $session"
	echo "format 1"
	echo "date $(date -u +%Y-%m-%dT%H:%M:%SZ)"
	echo "project ${STEAL_PROJECT:-$(git -C "$dir" describe --always --dirty --tags 2>/dev/null || echo unknown)}"
	echo "command $command_line"
	echo "hackbench hackbench -g GROUPS -l $loops"
	echo "hackbench_version ${package:-${hversion:-unknown}}"
	echo "release $(uname -r)"
	echo "version $(uname -v)"
	echo "machine $(uname -m)"
	echo "boot $(cat "$proc/cmdline" 2>/dev/null)"
	echo "features $(cat "$features")"
	echo "schedstats_before $was_schedstats"
	echo "schedstat $version"
	echo "clock $clock"
	echo "model ${model:-unknown}"
	echo "online $(online)"
	echo "cpus $(wc -l <"$tmp/topology" | tr -d ' ')"
	echo "llcs $llcs"
	sed 's/^/topology /' "$tmp/topology"
	echo "end session"
}

# snapshot: always in this order, so that what the reading itself takes is the same at both ends.
snapshot()
{
	echo "clock $(now)"
	echo "online $(online)"
	echo "features $(cat "$features")"
	sed 's/^/schedstat /' "$proc/schedstat"
	[ ! -r "$idle_search" ] || sed 's/^/idle_search /' "$idle_search"
}

# one GROUPS SIDE: a run and its record
one()
{
	case $2 in
	off) set_steal NO_STEAL ;;
	on) set_steal STEAL ;;
	esac
	snapshot >"$tmp/before"
	# In the background because a trap waits for what runs in the foreground.
	running=1
	hackbench -g "$1" -l "$loops" >"$tmp/out" 2>&1 </dev/null &
	wait $!
	status=$?
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
		echo "command hackbench -g $1 -l $loops"
		echo "date $(date -u +%Y-%m-%dT%H:%M:%SZ)"
		echo "exit $status"
		echo "time ${time:--}"
		echo "valid $valid"
		sed 's/^/output /' "$tmp/out"
		sed 's/^/before /' "$tmp/before"
		sed 's/^/after /' "$tmp/after"
		echo "end run"
	} >"$tmp/record"
	cat "$tmp/record" >>"$out" || die "cannot append to $out"

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

was_schedstats=$(cat "$schedstats") || die "$schedstats: cannot be read"
if [ "$was_schedstats" != 1 ]; then
	old_schedstats=$was_schedstats
	echo 1 >"$schedstats" || die "$schedstats: cannot be written"
fi
old_steal=$was
session=$(date -u +%Y%m%d-%H%M%S)-$$
number=0 work=0 bad=0 total=0 all_work=0
for g in $groups; do
	total=$((total + 2 * runs)) all_work=$((all_work + 2 * runs * g))
done
describe >"$tmp/record"
cat "$tmp/record" >>"$out" || die "cannot append to $out"
say "$total runs; raw records go to $out"

# Off and on are neighbours, and take turns at going first, so that a drift of the machine hits
# both alike. All groups have had their turn before any has its second.
start=$(date +%s)
pair=1
while [ $pair -le "$runs" ]; do
	for g in $groups; do
		if [ $((pair % 2)) -eq 1 ]; then
			one "$g" off
			one "$g" on
		else
			one "$g" on
			one "$g" off
		fi
	done
	pair=$((pair + 1))
done
restore
awk -v session="$session" -f "$dir/hackbench-table.awk" "$out" || bad=$((bad + 1))
[ $bad -eq 0 ] || die "$bad of $total runs failed or are not valid; see $out"
