#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: no-memory.sh
#
# Runs in a guest with fault injection and the checker. Makes a cpuset partition again and again, and each time
# the next of the allocations on the way fails: the 1st, the 2nd, ... until none is left to fail. After each
# the checker must find no violation, and with domains that lack a mask the machine still runs hackbench.
# Prints how many allocations failed, and how many of those took away a mask.

check=/sys/kernel/debug/sched/overload_check
p=/sys/fs/cgroup/p
for f in /proc/self/fail-nth /sys/kernel/debug/failslab $check; do
	[ -e "$f" ] || { echo "no-memory.sh: error: $f: not there"; exit 2; }
done
echo N >/sys/kernel/debug/failslab/ignore-gfp-wait
# no backtrace for each failure
echo 0 >/sys/kernel/debug/failslab/verbose

value() { sed -n "s/^$1 //p" /tmp/check; }
good() {
	cat $check >/tmp/check
	[ "$(value violations)" = 0 ] || {
		echo "FAIL: $*"
		cat /tmp/check
		exit 1
	}
}

echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
mkdir $p
good 'before'
[ "$(value missing)" = 0 ] || { echo 'FAIL: a mask is missing from the start'; exit 1; }
n=0
without=0
failed=0
while :; do
	n=$((n + 1))
	[ $n -lt 2000 ] || { echo 'FAIL: there is no end to the allocations'; exit 1; }
	echo member >$p/cpuset.cpus.partition
	echo 2-3 >$p/cpuset.cpus
	# The shell itself writes both files. What is left of the number tells whether it came to that allocation.
	left=$(sh -c "echo $n >/proc/self/fail-nth; echo root >$p/cpuset.cpus.partition; read left </proc/self/fail-nth; echo 0 >/proc/self/fail-nth; echo \$left" 2>/dev/null)
	[ "${left:-0}" = 0 ] || break
	failed=$((failed + 1))
	good "allocation $n failed"
	if [ "$(value missing)" != 0 ]; then
		without=$((without + 1))
		[ $without -gt 2 ] || hackbench -g 1 -l 20 >/dev/null || { echo 'FAIL: hackbench'; exit 1; }
	fi
done
echo member >$p/cpuset.cpus.partition
rmdir $p
good 'after'
[ "$(value missing)" = 0 ] || { echo 'FAIL: a mask is missing although there is memory'; cat /tmp/check; exit 1; }
echo "allocations $failed without $without said $(dmesg | grep -c 'no memory for cfs_overload_cpus')"
