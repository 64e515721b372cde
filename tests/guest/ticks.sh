#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: ticks.sh SECONDS
#
# Runs in a guest: a task that computes on each CPU, and nothing else, for SECONDS seconds. Prints "ticks N N ...", how many
# interrupts of its timer each CPU had meanwhile. A CPU without a tick (nohz_full=) has hardly any.

go=/tmp/ticks.go
cpus=$(grep -c ^processor /proc/cpuinfo)
ticks() {
	awk -v cpus="$cpus" '$1 == "LOC:" || / arch_timer$/ {
		for (i = 0; i < cpus; i++)
			n[i] += $(i + 2)
	} END {
		for (i = 0; i < cpus; i++)
			printf " %d", n[i]
	}' /proc/interrupts
}

: >$go
cpu=0
while [ $cpu -lt "$cpus" ]; do
	taskset "$(printf %x $((1 << cpu)))" sh -c "while [ -e $go ]; do :; done" &
	cpu=$((cpu + 1))
done
sleep 2
before=$(ticks)
sleep "$1"
after=$(ticks)
rm $go
wait
echo "$before $after" | awk '{ printf "ticks"; for (i = 1; i <= NF / 2; i++) printf " %d", $(i + NF / 2) - $i; print "" }'
