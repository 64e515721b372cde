#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: switch-on.sh
#
# Runs in a guest of two CPUs that share a cache. Ten times: two tasks that never sleep wait for
# CPU 0 while STEAL is off; then they may run on CPU 1, too, and STEAL is switched on. Nothing is
# enqueued on CPU 0 at that moment, so that CPU 1 can find a task there only if switching on has
# brought CPU 0's bit up to date. Prints how often CPU 1 stole within 3 ms.

d=/sys/kernel/debug/sched
taskset -p 2 $$ >/dev/null
# Every task is cache-hot: load balancing leaves them alone for a while.
echo 4294967295 >$d/migration_cost_ns
stolen() { awk '/^cpu/ { s += $2 } END { print s }' $d/idle_search; }
hits=0
for round in 1 2 3 4 5 6 7 8 9 10; do
	echo NO_STEAL >$d/features
	taskset 1 sh -c 'while :; do :; done' &
	a=$!
	taskset 1 sh -c 'while :; do :; done' &
	b=$!
	usleep 200000
	before=$(stolen)
	taskset -p 3 $a >/dev/null
	taskset -p 3 $b >/dev/null
	echo STEAL >$d/features
	usleep 3000
	[ "$(stolen)" = "$before" ] || hits=$((hits + 1))
	kill $a $b
	wait $a $b 2>/dev/null
done
echo "found in $hits of $round rounds"
