#!/bin/sh
# SPDX-License-Identifier: GPL-2.0

# Usage: attended.sh COMMAND [ARG...]
#
# Runs COMMAND, without standard input, until standard input ends: then COMMAND gets SIGTERM. So a collector that runs over
# ssh ends, and puts all back, when the connection is lost. If the machine has flock, it first waits for another collector here, a
# minute at most.
#
# Exit status: that of COMMAND; 4 another collector did not end.

case ${1:---help} in
--help) sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
# The lock of bench/ab on this machine. File 9 stays open as long as this script runs, and only here.
lock=${STEAL_SYS:-/sys}/kernel
if command -v flock >/dev/null && [ -r "$lock" ]; then
	exec 9<"$lock"
	tries=0
	until flock -n 9; do
		tries=$((tries + 1))
		[ "$tries" -lt 60 ] || { echo 'error: another comparison measures this machine; wait for it to end' >&2; exit 4; }
		sleep 1
	done
fi
exec 3<&0
"$@" </dev/null 3<&- 9<&- &
command=$!
{
	cat <&3
	kill "$command"
} >/dev/null 2>&1 9<&- &
watch=$!
trap 'kill "$command"' HUP INT TERM
wait "$command"
status=$?
# A trap ends wait. The command may take a moment to put all back.
while kill -0 "$command" 2>/dev/null; do
	wait "$command"
	status=$?
done
kill "$watch" 2>/dev/null
exit "$status"
