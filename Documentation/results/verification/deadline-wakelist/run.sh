#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# Usage: run.sh FEATURE
# Runs in a guest with a kernel without the series: deadline-wakelist, with TTWU_QUEUE or NO_TTWU_QUEUE.
echo -1 >/proc/sys/kernel/sched_rt_runtime_us
echo "$1" >/sys/kernel/debug/sched/features || exit 3
/opt/deadline-wakelist 12 40
