#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: cpuset-partition-del.sh
#
# Gives a cpuset partition that became invalid by CPU hotplug other CPUs, and prints the kernel's
# warnings. Needs root, cgroup v2 at /sys/fs/cgroup and six CPUs, of which it takes 2 and 3
# offline. For a test machine: it puts nothing back.

cd /sys/fs/cgroup || exit 1
echo +cpuset >cgroup.subtree_control
mkdir p
echo 2-3 >p/cpuset.cpus
sh -c 'echo $$ >p/cgroup.procs; exec sleep 1000' &
sleep 0.1
echo root >p/cpuset.cpus.partition
for cpu in 2 3; do
	echo 0 >/sys/devices/system/cpu/cpu$cpu/online
done
sleep 0.2
echo "CPUs offline: $(cat p/cpuset.cpus.partition), effective CPUs $(cat p/cpuset.cpus.effective)"
echo 4-5 >p/cpuset.cpus
echo "other CPUs: $(cat p/cpuset.cpus.partition), effective CPUs $(cat p/cpuset.cpus.effective)"
dmesg | grep WARNING
