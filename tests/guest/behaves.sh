#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: behaves.sh
#
# Runs in a guest of four CPUs, of which 0 and 1 share an LLC: hackbench, and where the kernel has STEAL, with it off and on in turn. With
# NO_STEAL nothing may be stolen. With STEAL there has to be newly-idle balancing, too, if the kernel has schedstats. With STEAL_FIRST,
# where the kernel has it, tasks are stolen as well, and newly-idle balancing searches the right levels. Nothing is counted without
# schedstats. Prints "steal no", or "steal yes stolen N", N being counted if the kernel counts.

d=/sys/kernel/debug/sched
tries='1 2 3 4 5'
fail() { echo "FAIL: $*"; exit 1; }
work() { hackbench -g 1 -l 50 >/dev/null || fail 'hackbench'; }
has() { grep -qw "\(NO_\)\?$1" $d/features; }
set_features() { for f; do echo "$f" >$d/features || fail "$f"; done; }
stolen() { awk '/^cpu/ { s += $2 } END { print s + 0 }' $d/idle_search 2>/dev/null || echo 0; }
# counted: all that is counted of stealing
counted() { grep '^cpu' $d/idle_search; }
# balanced: how often domains were searched by CPUs that were newly idle: the 23rd counter of version 17, the 17th of version 16,
# which does not have the domain's name
balanced() {
	awk '/^version/ { at = $2 == 17 ? 26 : $2 == 16 ? 19 : 0; if (!at) exit 1 }
		/^domain/ { s += $at } END { print s + 0 }' /proc/schedstat
}
# eager: forgets how long searches took. On a busy host that can be longer than any CPU is idle, and then there is no balancing.
eager() { for f in "$d"/domains/cpu*/*/max_newidle_lb_cost; do echo 0 >"$f"; done; }
# balances: in a few tries there is newly-idle balancing
balances() {
	before=$(balanced) || fail '/proc/schedstat has a version of its own'
	for _ in $tries; do
		eager
		work
		[ "$(balanced)" = "$before" ] || return 0
	done
	return 1
}
# steals: in a few tries tasks are stolen
steals() {
	before=$(stolen)
	for _ in $tries; do
		work
		[ "$(stolen)" = "$before" ] || return 0
	done
	return 1
}
# levels: the same of CPU 0, for the domains of CPUs 0 and 1 and for those of all four
levels() {
	awk '/^version/ { at = $2 == 17 ? 26 : 19; span = $2 == 17 ? 3 : 2 } /^cpu/ { cpu = $1 }
		/^domain/ && cpu == "cpu0" { mask = $span; gsub(/,/, "", mask); sub(/^0*/, "", mask); s[mask] += $at }
		END { print s[3] + 0, s["f"] + 0 }' /proc/schedstat
}
# idle: CPU 0 goes idle 200 times, for longer than any search is said to take; sets $within and $above, how often it searched these levels
idle() {
	before=$(levels)
	# shellcheck disable=SC2016 # the shell inside
	taskset 1 sh -c 'for n in $(seq 200); do for f; do echo 0 >"$f"; done; usleep 2000; done' sh $d/domains/cpu0/*/max_newidle_lb_cost
	# shellcheck disable=SC2046,SC2086 # numbers
	set -- $before $(levels)
	within=$(($3 - $1)) above=$(($4 - $2))
	echo "searched within the LLC $within above $above"
}
# hogs MASK [COMMAND...]: two tasks, run by COMMAND, that never sleep and may use these CPUs only
hogs() {
	mask=$1
	shift
	for _ in 1 2; do
		taskset "$mask" "$@" sh -c 'while :; do :; done' &
		hogs="$hogs $!"
	done
}
# shellcheck disable=SC2086 # a list
end_hogs() { kill $hogs; wait $hogs 2>/dev/null; hogs=; }

echo WARN_DOUBLE_CLOCK >$d/features
has STEAL || { work; echo 'steal no'; exit; }
if [ -e /proc/sys/kernel/sched_schedstats ]; then
	echo 0 >/proc/sys/kernel/sched_schedstats
	if [ -e $d/idle_search ]; then
		before=$(counted)
		work
		work
		[ "$(counted)" = "$before" ] || fail 'counted without schedstats'
	fi
	echo 1 >/proc/sys/kernel/sched_schedstats
fi
first=
! has STEAL_FIRST || first=STEAL_FIRST
echo Y >$d/verbose
for _ in 1 2 3; do
	set_features NO_STEAL
	before=$(stolen)
	work
	[ "$(stolen)" = "$before" ] || fail 'stolen with NO_STEAL'
	set_features STEAL NO_NI_RANDOM ${first:+NO_STEAL_FIRST}
	[ ! -e /proc/schedstat ] || balances || fail 'no newly-idle balancing with STEAL'
	set_features NI_RANDOM $first
	[ ! -e $d/idle_search ] || steals || fail 'nothing stolen'
done

# Balancing needs an overloaded CPU somewhere: 3, of the other LLC. CPU 2 is for this script.
if [ -n "$first" ] && [ -e /proc/schedstat ]; then
	taskset -p 4 $$ >/dev/null
	set_features NO_NI_RANDOM NO_STEAL_FIRST
	hogs=
	hogs 8
	idle
	{ [ $within -ge 50 ] && [ $above -ge 50 ]; } || fail 'no newly-idle balancing with NO_STEAL_FIRST'
	usual=$within
	set_features STEAL_FIRST
	for _ in $tries; do
		idle
		[ $within -ge $((usual / 4)) ] || break
		# CPU 1 may idle while its fair server is queued, which counts as a deadline task. A task of another class ends that.
		taskset 2 chrt -f 1 true
	done
	[ $within -lt $((usual / 4)) ] || fail 'the LLC is searched a second time'
	[ $above -ge 50 ] || fail 'levels above the LLC are not searched'
	hogs 2
	idle
	[ $within -ge 50 ] || fail 'the LLC is not searched beside a CPU with pinned tasks'
	end_hogs
	hogs 2 chrt -f 1
	idle
	[ $within -ge 50 ] || fail 'the LLC is not searched beside RT tasks'
	end_hogs
	set_features NI_RANDOM
fi
echo "steal yes stolen $([ -e $d/idle_search ] && stolen || echo -)"
