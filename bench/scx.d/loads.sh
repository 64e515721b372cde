#!/bin/sh
# SPDX-License-Identifier: GPL-2.0

# Usage: loads.sh LOOPS GROUPS...
#
# Runs in the guests of bench/scx: hackbench with sockets for each number of GROUPS, with LOOPS messages from each sender to each
# receiver; then requests at a rate for which the CPUs must be busy half of the time, as the load paced-50. Prints "groups N time NS",
# then the metrics of the requests. If the kernel's release ends in -scx, scx_simple schedules all tasks meanwhile; this
# fails if it does not.

loops=$1
shift
# The variables are for the tests, which have their own files there.
clock=${STEAL_PROC:-/proc}/timer_list
state=${STEAL_SYS:-/sys}/kernel/sched_ext/state
said=${TMPDIR:-/tmp}/scx_simple
scheduler=

# enabled: whether a sched_ext scheduler has the tasks
enabled() { [ "$(cat "$state")" = enabled ]; }
# now: ns since boot
now() { sed -n 's/^now at \([0-9]*\) nsecs$/\1/p;/^now at/q' "$clock"; }
fail() {
	echo "loads.sh: error: $1"
	[ ! -e "$said" ] || cat "$said"
	[ -z "$scheduler" ] || kill "$scheduler" 2>/dev/null
	exit 1
}

case $(uname -r) in
*-scx)
	scx_simple >"$said" 2>&1 &
	scheduler=$!
	until enabled; do
		kill -0 $scheduler 2>/dev/null || fail 'scx_simple ended'
		sleep 0.1
	done
	;;
esac
cpus=$(grep -c ^processor /proc/cpuinfo)
for groups; do
	began=$(now)
	hackbench -g "$groups" -l "$loops" >/dev/null || fail 'hackbench failed'
	echo "groups $groups time $(($(now) - began))"
done
requests wake --busy 50 --workers $((4 * cpus)) --requests $((400 * cpus)) --seed 1 || fail 'the requests failed'
if [ -n "$scheduler" ]; then
	# The kernel takes the tasks back if one waits for too long.
	enabled || fail 'scx_simple was stopped'
	# It says each second how many tasks it gave to an idle CPU at once, and how many to its queue.
	lines=$(grep -c '^local=' "$said")
	until [ "$(grep -c '^local=' "$said")" -gt "$lines" ]; do
		kill -0 $scheduler 2>/dev/null || fail 'scx_simple ended'
		sleep 0.1
	done
	kill $scheduler
	wait $scheduler
	grep '^local=' "$said" | tail -n 1
fi
