#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: behaves.sh
#
# Runs in a guest: hackbench, and where the kernel has STEAL, with it off and on in turn. With NO_STEAL nothing may
# be stolen. Prints "steal no", or "steal yes stolen N", N being counted if the kernel counts.

d=/sys/kernel/debug/sched
work() { hackbench -g 1 -l 50 >/dev/null || { echo 'FAIL: hackbench'; exit 1; }; }
stolen() { awk '/^cpu/ { s += $2 } END { print s + 0 }' $d/idle_search 2>/dev/null || echo 0; }

echo WARN_DOUBLE_CLOCK >$d/features
grep -qw STEAL $d/features || { work; echo 'steal no'; exit; }
[ ! -e /proc/sys/kernel/sched_schedstats ] || echo 1 >/proc/sys/kernel/sched_schedstats
for _ in 1 2 3; do
	echo NO_STEAL >$d/features
	before=$(stolen)
	work
	[ "$(stolen)" = "$before" ] || { echo 'FAIL: stolen with NO_STEAL'; exit 1; }
	echo STEAL >$d/features
	work
done
echo "steal yes stolen $([ -e $d/idle_search ] && stolen || echo -)"
