#!/bin/sh
# SPDX-License-Identifier: GPL-2.0

# Usage: attended.sh COMMAND [ARG...]
#
# Runs COMMAND, without standard input, until standard input ends: then COMMAND gets SIGTERM. So a collector that runs over
# ssh ends, and puts all back, when the connection is lost.
#
# Exit status: that of COMMAND.

case ${1:---help} in
--help) sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; exit 0 ;;
esac
exec 3<&0
"$@" </dev/null 3<&- &
command=$!
{
	cat <&3
	kill "$command"
} >/dev/null 2>&1 &
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
