#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: behaves.sh
#
# Runs in a guest: hackbench, and where the kernel has STEAL, with it off and on in turn. With NO_STEAL nothing may
# be stolen; with STEAL there has to be newly-idle balancing, too, if the kernel has schedstats. Prints "steal no", or "steal yes
# stolen N", N being counted if the kernel counts.

d=/sys/kernel/debug/sched
work() { hackbench -g 1 -l 50 >/dev/null || { echo 'FAIL: hackbench'; exit 1; }; }
stolen() { awk '/^cpu/ { s += $2 } END { print s + 0 }' $d/idle_search 2>/dev/null || echo 0; }
# balanced: how often domains were searched by CPUs that were newly idle, the 23rd counter of version 17
balanced() { awk '/^version/ && $2 != 17 { exit 1 } /^domain/ { s += $26 } END { print s + 0 }' /proc/schedstat; }

echo WARN_DOUBLE_CLOCK >$d/features
grep -qw STEAL $d/features || { work; echo 'steal no'; exit; }
[ ! -e /proc/sys/kernel/sched_schedstats ] || echo 1 >/proc/sys/kernel/sched_schedstats
for _ in 1 2 3; do
	echo NO_STEAL >$d/features
	before=$(stolen)
	work
	[ "$(stolen)" = "$before" ] || { echo 'FAIL: stolen with NO_STEAL'; exit 1; }
	echo STEAL >$d/features
	[ ! -e /proc/schedstat ] || before=$(balanced) || { echo 'FAIL: /proc/schedstat has a version of its own'; exit 1; }
	work
	[ ! -e /proc/schedstat ] || [ "$(balanced)" != "$before" ] || { echo 'FAIL: no newly-idle balancing with STEAL'; exit 1; }
done
echo "steal yes stolen $([ -e $d/idle_search ] && stolen || echo -)"
