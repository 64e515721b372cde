#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: no-memory.sh
#
# Runs in a guest with fault injection and the checker. Makes a cpuset partition again and again, and each time
# the next of the allocations on the way fails: the 1st, the 2nd, ... until none is left to fail. After each
# the checker must find no violation. If it was that of a mask, another CPU of the same LLC has got one then.
#
# Then makes it while no more memory of the size of such masks is to be had, so that domains have to do without.
# The machine balances and runs hackbench like this, and has masks again after the next rebuild.
#
# Prints how many allocations failed, how often the kernel said that there is no memory for a mask, how
# many CPUs had to do without, and to how many CPUs tasks that began on one have come then.

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
failed=0
said=0
said_now() { said=$((said + $(dmesg -c | grep -c 'no memory for cfs_overload_cpus'))); }
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
	[ "$(value missing)" = 0 ] || { echo "FAIL: a mask is missing when allocation $n alone failed"; cat /tmp/check; exit 1; }
	# Failed allocations of cpumasks fill the log.
	said_now
done

# The mask of two CPUs takes two cache lines. Other things of that size come first in a rebuild: more and more of
# them are to be had, and then nothing, until only masks are lacking.
fail=/sys/kernel/debug/failslab
slab=/sys/kernel/slab/kmalloc-128/failslab
[ -e $slab ] || { echo "FAIL: $slab: not there"; exit 1; }
for f in cache-filter:Y task-filter:Y times:-1; do echo "${f#*:}" >$fail/"${f%:*}"; done
missing=0
n=0
while [ "$missing" = 0 ] && [ $n -lt 100 ]; do
	n=$((n + 1))
	echo member >$p/cpuset.cpus.partition
	echo $((128 * n)) >$fail/space
	echo 100 >$fail/probability
	echo 1 >$slab
	# Opening the file takes such memory as well.
	sh -c "exec 3>$p/cpuset.cpus.partition; echo 1 >/proc/self/make-it-fail; echo root >&3" 2>/dev/null
	echo 0 >$slab
	echo 0 >$fail/probability
	good "no memory after $n"
	missing=$(value missing)
	said_now
done
# As many tasks as there are CPUs outside the partition, begun on one of these: each gets its own.
pids=
for _ in 1 2 3 4 5 6; do
	taskset 1 sh -c 'while :; do :; done' &
	pids="$pids $!"
done
n=0
spread=0
while [ "$spread" -lt 6 ] && [ $n -lt 60 ]; do
	sleep 1
	n=$((n + 1))
	# again and again: one that is slow to begin binds itself later
	for task in $pids; do taskset -p ff "$task" >/dev/null || { echo 'FAIL: taskset'; exit 1; }; done
	spread=$(for task in $pids; do awk '{ print $39 }' "/proc/$task/stat"; done | sort -u | wc -l)
done
# shellcheck disable=SC2086 # a list of numbers
kill $pids
wait
[ "$missing" = 0 ] || hackbench -g 1 -l 20 >/dev/null || { echo 'FAIL: hackbench'; exit 1; }

echo member >$p/cpuset.cpus.partition
rmdir $p
good 'after'
[ "$(value missing)" = 0 ] || { echo 'FAIL: a mask is missing although there is memory'; cat /tmp/check; exit 1; }
echo "allocations $failed said $said missing $missing spread $spread"
