#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Usage: storm.sh SECONDS STORM[+STORM...]...
#
# Runs in a guest, with the program `storm` beside it, a round for each argument: for SECONDS seconds these
# storms at once, under load, while the kernel's checker (debugfs sched/overload_check) reads all the time:
#
#	load		hackbench and stress-ng; always there, and not to be named
#	plain		as the program storm has it; so are hogs, affinity, classes, fifo, deadline, cookies
#	hotplug		takes CPUs away and brings them back, all but the first
#	partitions	makes cpuset partitions, root and isolated, of changing CPUs, with tasks in them
#	toggles		switches STEAL, DELAY_DEQUEUE and those of the follow-ups that the kernel has
#	throttle	gives groups of tasks, one in another, changing cpu.max
#	ext		gives all fair tasks to a sched_ext scheduler, and takes them back (program ext, if it is there)
#
# A round takes longer, by 300 sleeps of a second at most, if a storm has not come to STORM_OPERATIONS operations (10; throttle, to having
# throttled its outer group as well; classes, to a deadline task; load, to one run of hackbench) in its time, if as many tasks have not been stolen,
# if the tasks of partitions and of throttled groups have not computed, or the checker has not come to STORM_READINGS readings (5) without
# finding anything. Prints what each storm did, and of each round what was stolen and what the checker said. Fails if the checker
# found a violation, if the mask of a domain is missing, if a task did not end within a minute or if a storm, stealing or the checker did
# less than that. Storms that this kernel cannot have are named as "unsupported". Where there are cookies, one stolen task
# will do: CPUs do not steal while core scheduling is enabled on them. So it does with hotplug, where the round does not wait for it, as the counts of
# CPUs that are gone are not to be had.
#
# STORM_NO_CHECKER=1: for a kernel without the checker, and without stealing.
# STORM_SEARCH_US=N: each search for a task takes so many microseconds longer, while the mask that it reads may go.

d=/sys/kernel/debug/sched
cg=/sys/fs/cgroup
here=$(dirname "$0")
w=/tmp/storm
bad=0
worst=0
mkdir -p $w
# for the programs storm and ext as well
export STORM_OPERATIONS="${STORM_OPERATIONS:-10}"
readings=${STORM_READINGS:-5}
[ -z "$STORM_SEARCH_US" ] || echo "$STORM_SEARCH_US" >$d/overload_check_delay || exit 2

cpus=$(grep -c ^processor /proc/cpuinfo)
[ "$cpus" -ge 4 ] || { echo "storm.sh: error: needs 4 CPUs"; exit 2; }
seconds=$1
shift
rand=$$
# random N: $r becomes a number from 0 to N-1; no process is started for it
random() {
	rand=$(((rand * 1103515245 + 12345) & 0x7fffffff))
	r=$(((rand >> 12) % $1))
}
running() { [ -e $w/go ]; }
# urgent: among real-time tasks, this subshell is one from now on, or it would not get to its work
urgent() {
	[ -z "$realtime" ] || chrt -f -p 60 "$(exec sh -c 'echo $PPID')" >/dev/null
}
# threads: timers under PREEMPT_RT, and what each CPU that comes or goes waits for: among real-time tasks these would hardly run
threads() {
	for f in /proc/[0-9]*/comm; do
		t=${f#/proc/}
		t=${t%/comm}
		case $(cat "$f" 2>/dev/null)${realtime:- fair} in
		ktimers/* | cpuhp/*yes | ksoftirqd/*yes) chrt -f -p 65 "$t" >/dev/null || exit 2 ;;
		cpuhp/* | ksoftirqd/*) chrt -o -p 0 "$t" >/dev/null || exit 2 ;;
		esac
	done
}
# usual COMMAND...: not a real-time task, although the caller may be one
usual() { exec chrt -o 0 "$@"; }
# in_group GROUP FILE COMMAND...: the same, and all that it starts is in this group; makes FILE when it is there
# shellcheck disable=SC2016 # $0 and $@ are another shell's
in_group() {
	g=$1
	shift
	usual sh -c 'echo 0 >"$0" && : >"$1" && shift && exec "$@"' "$cg/$g/cgroup.procs" "$@"
}
# group GROUP TASKS: in the background, tasks that compute and sleep in this group, until $w/in.NAME is removed (NAME: its last part)
group() {
	f=$w/in.${1##*/}
	: >"$f"
	{ (in_group "$1" "$f".there "$here/storm" plain "$2" "$f") >"$f".out || fail "the tasks of $1: status $?"; } &
}
# there NAME...: these groups have their tasks
there() {
	for f; do [ -e $w/in."$f".there ] || return 1; done
}
# computes NAME...: the tasks of all of these groups have done so some times
computes() {
	for f; do [ -e $w/in."$f".plain ] || return 1; done
}
# end_groups NAME...: and wait for their tasks; says which of them are lost
end_groups() {
	for f; do rm $w/in."$f"; done
	wait
	for f; do
		grep -q 'operations [1-9]' $w/in."$f".out || fail "the tasks of $f did nothing"
		sed -n '/^lost/p' $w/in."$f".out
	done
}
# timers: those of each CPU, and its interrupts of timers and for scheduling; twice. A task that sleeps for ever may wait for a timer that
# does not fire.
timers() {
	for f in 1 2; do
		grep -E '^now|^cpu:|expires_next|nr_events|nr_retries|nr_hangs|max_hang_time|^Per CPU|^ mode:|^ next_event' /proc/timer_list
		grep -E 'CPU0|LOC|RES|arch_timer|IPI0' /proc/interrupts
		sleep 1
	done
}
# stop_fair_servers, start_fair_servers: a server with a runtime of 0 does not run
stop_fair_servers() {
	for f in "$d"/fair_server/cpu*/runtime; do
		echo "$f $(cat "$f")"
		echo 0 >"$f"
	done >$w/fair_servers 2>/dev/null
}
start_fair_servers() {
	while read -r f ns; do
		echo "$ns" >"$f" || fail "$f: cannot be set to $ns again"
	done <$w/fair_servers
}
# What the checker prints of busy CPUs with an idle_stamp counts without fair servers only: one that searches for tasks
# when a real-time task is next, and not idle, leaves the stamp, in the base as well. So only the round "plain" is
# strict, and does without fair servers. Linux 6.12 and 6.18 have no strict round: there, a CPU whose last fair task stops searches
# first, also if a real-time task is next (balance_fair()). In 6.12, besides, a write to the parameters of a fair server
# that is not active breaks the accounting of its bandwidth (sched_fair_server_write() stops it again).
fail() {
	echo "FAIL: $*"
	bad=1
}

# wait_for STORM: for a second; in a round, for 300 in all, and it says so from time to time
wait_for() {
	[ $waited -lt 300 ] || return 1
	sleep 1
	waited=$((waited + 1))
	[ $((waited % 30)) != 0 ] || echo "round $round waiting $waited seconds for $1"
}

# did STORM COUNT: it has done this much; the round need not wait for it if this is enough
did() { [ "$2" -lt "$STORM_OPERATIONS" ] || [ -e $w/go."$1" ] || : >$w/go."$1"; }

# Each storm writes "storm NAME operations N" to its file when $w/go is gone.
hotplug() {
	urgent
	n=0
	while running; do
		random $((cpus - 1))
		f=/sys/devices/system/cpu/cpu$((r + 1))/online
		random 2
		if [ "$(cat $f)" = 1 ]; then s=0; else s=1; fi
		echo $s 2>/dev/null >$f && n=$((n + 1)) && did hotplug $n
		usleep 5000
	done
	for f in /sys/devices/system/cpu/cpu*/online; do
		[ "$(cat "$f")" = 1 ] || echo 1 >"$f" || fail "$f: does not come back"
	done
	echo "storm hotplug operations $n"
}

partitions() {
	urgent
	n=0
	echo +cpuset >$cg/cgroup.subtree_control
	mkdir -p $cg/p0 $cg/p1
	group p0 4
	group p1 4
	# In Linux 6.12 and 6.18, a change of the isolated CPUs and a move of a task into a group can wait for each other for
	# ever (Documentation/base-faults/cpuset-isolated-attach.rst). So the tasks are moved before the first change.
	case $round in
	*throttle*) set -- p0 p1 t1 t2 ;;
	*) set -- p0 p1 ;;
	esac
	while running && ! there "$@"; do usleep 5000; done
	while running; do
		# What overlaps with the other one would be refused, and so it would be if none were left to the root group.
		random 2
		p=p$r
		case $p in
		p0) first=1 last=$((cpus - 3)) ;;
		p1) first=$((cpus - 2)) last=$((cpus - 1)) ;;
		esac
		random $((last + 1 - first))
		a=$((first + r))
		random $((last + 1 - a))
		# Half of the CPUs are left to the real-time tasks of the root group, or those that are not would hardly run.
		[ -z "$realtime" ] || r=$((r % (cpus / 4)))
		b=$((a + r))
		random 4
		case $r in
		0) s=isolated ;;
		1) s=member ;;
		*) s=root ;;
		esac
		# a refused one is none
		{ echo $a-$b >$cg/$p/cpuset.cpus && echo $s >$cg/$p/cpuset.cpus.partition; } 2>/dev/null &&
			[ $s != member ] && [ "$(cat $cg/$p/cpuset.cpus.partition)" = $s ] &&
			n=$((n + 1)) && computes p0 p1 && did partitions $n
		usleep 5000
	done
	echo member >$cg/p0/cpuset.cpus.partition
	echo member >$cg/p1/cpuset.cpus.partition
	end_groups p0 p1
	rmdir $cg/p0 $cg/p1 || fail "a partition's group has tasks left"
	echo "storm partitions operations $n"
}

toggles() {
	urgent
	n=0
	all=$(tr ' ' '\n' <$d/features | sed -n 's/^\(NO_\)\{0,1\}\(STEAL\|STEAL_[A-Z]*\|SYNC_WAIT\|DELAY_DEQUEUE\)$/\2/p')
	while running; do
		# shellcheck disable=SC2086 # a list
		set -- $all
		random $#
		shift $r
		f=$1
		case " $(cat $d/features)" in
		*" $f "*) f=NO_$f ;;
		esac
		echo "$f" >$d/features && n=$((n + 1)) && did toggles $n
		usleep 3000
	done
	for f in $all; do echo "$f" >$d/features; done
	echo "storm toggles operations $n"
}

throttle() {
	urgent
	n=0
	echo +cpu >$cg/cgroup.subtree_control
	mkdir -p $cg/t0/t1
	echo +cpu >$cg/t0/cgroup.subtree_control
	mkdir -p $cg/t0/t2
	group t0/t1 6
	group t0/t2 6
	while running; do
		random 3
		p=t0/t$r
		[ $r != 0 ] || p=t0
		# The last one throttles groups, too, that hardly get to run among real-time tasks.
		random 5
		case $r in
		0) m=max ;;
		1) m='1000 10000' ;;
		2) m='3000 5000' ;;
		3) m='20000 20000' ;;
		4) m='1000 100000' ;;
		esac
		echo "$m" >$cg/$p/cpu.max && n=$((n + 1))
		[ -e $w/go.throttle ] || ! grep -q '^nr_throttled [1-9]' $cg/t0/cpu.stat || ! computes t1 t2 || did throttle $n
		usleep 10000
	done
	for p in t0 t0/t1 t0/t2; do echo max >$cg/$p/cpu.max; done
	end_groups t1 t2
	echo "storm throttle throttled $(awk '/^nr_throttled/ { print $2 }' $cg/t0/cpu.stat)"
	rmdir $cg/t0/t1 $cg/t0/t2 $cg/t0 || fail "a throttled group has tasks left"
	echo "storm throttle operations $n"
}

load() {
	n=0
	mkdir -p $w/none
	while running; do
		# stress-ng does not see /sys/devices/system/cpu. When a CPU goes while it reads of its caches there, it writes a 0 somewhere:
		# stress_system_read() uses the error as the length of what was read.
		unshare -m sh -c "mount --bind $w/none /sys/devices/system/cpu && exec stress-ng --quiet --futex 2 --fork 1 --cpu 2 --yield 2 -t 5" \
			>$w/stress-ng 2>&1 || fail "stress-ng: status $?: $(head -n 1 $w/stress-ng)"
	done &
	while running; do
		# sockets and pipes in turn
		[ $((n % 2)) = 0 ] && pipes= || pipes=yes
		hackbench -g 1 -f 4 -l 20 ${pipes:+-p} >$w/hackbench || fail 'hackbench'
		n=$((n + 1))
		: >$w/go.load
	done
	wait
	echo "storm load operations $n"
}

checker() {
	urgent
	n=0
	while running || [ $n = 0 ]; do
		cat $d/overload_check >$w/check || fail 'cannot read overload_check'
		n=$((n + 1))
		echo >>$w/readings
		if ! grep -q '^missing 0$' $w/check || ! grep -q '^violations 0$' $w/check ||
			! { [ -z "$strict" ] || grep -q '^stamps 0$' $w/check; } ||
			! grep -q '^waits 0$' $w/check; then
			fail "the checker, reading $n:"
			grep -B1 -A1 '^violation\|^stamp cpu' $w/check
			tail -n 4 $w/check
		fi
		usleep 50000
	done
	echo "checker readings $n"
}

# stolen: how many tasks the CPUs that are there have stolen since boot, and how many searches found none
stolen() { awk '/^cpu/ { s += $2; f += $3 } END { print s + 0, f + 0 }' $d/idle_search; }
# in_round: the same of this round
in_round() { stolen | cat $w/before - | tr '\n' ' ' | awk '{ print $3 - $1, $4 - $2 }'; }
# enough: as many of this round as there are to be. may_steal() refuses on a CPU that real-time tasks use by more than 15 %. In the
# round fifo with PREEMPT_RT, all CPUs of the slow simulated machine, arm64, are like that nearly all the time.
enough() {
	case $round,$(uname -mv) in
	*cookies* | *hotplug*) set -- 1 ;;
	fifo,*PREEMPT_RT*aarch64) set -- 1 ;;
	*) set -- "$STORM_OPERATIONS" ;;
	esac
	[ -n "$STORM_NO_CHECKER" ] || [ "$(in_round | cut -d ' ' -f 1)" -ge "$1" ]
}

if [ -z "$STORM_NO_CHECKER" ] && [ ! -e $d/overload_check ]; then
	echo "storm.sh: error: $d/overload_check: not there; is CONFIG_SCHED_OVERLOAD_CHECK set?"
	exit 2
fi
[ ! -e /proc/sys/kernel/sched_schedstats ] || echo 1 >/proc/sys/kernel/sched_schedstats

for round; do
	# With core scheduling, the base updates the clocks of siblings a second time: pick_next_task() does so for
	# runqueues that another CPU has just left. So does sched_ext, with runqueues that it takes tasks from
	# (move_remote_task_to_local_dsq()).
	case $round in
	*cookies* | *ext*) echo NO_WARN_DOUBLE_CLOCK >$d/features ;;
	*) echo WARN_DOUBLE_CLOCK >$d/features ;;
	esac
	case $round in
	*fifo* | *deadline* | *classes*) realtime=yes ;;
	*) realtime= ;;
	esac
	threads
	case $round in
	plain) case $(uname -r) in 6.12.* | 6.18.*) strict= ;; *) strict=yes ;; esac ;;
	*) strict= ;;
	esac
	# Tasks of each kind. With many kinds at once, more of them than CPUs would be real-time ones.
	case $round in
	*+*+*+*+*) tasks=2 ;;
	*) tasks=6 ;;
	esac
	[ -z "$strict" ] || stop_fair_servers
	rm -f $w/go.* $w/out.* $w/in.*
	: >$w/readings
	: >$w/go
	bad=0
	if [ -z "$STORM_NO_CHECKER" ]; then
		stolen >$w/before
	fi
	pids=
	for storm in load $(echo "$round" | tr + ' ') $([ -n "$STORM_NO_CHECKER" ] || echo checker); do
		case $storm in
		load | hotplug | partitions | toggles | throttle | checker)
			$storm >$w/out."$storm" 2>&1 &
			;;
		ext)
			"$here/ext" $w/go >$w/out."$storm" 2>&1 &
			;;
		*)
			n=$tasks
			[ "$storm" != hogs ] || n=$((2 * cpus))
			"$here/storm" "$storm" $n $w/go >$w/out."$storm" 2>&1 &
			;;
		esac
		pids="$pids $storm:$!"
	done
	# Among real-time tasks this shell, which hardly does anything from now on, would take minutes for it on a slow host.
	chrt -f -p 60 $$ >/dev/null || exit 2
	sleep "$seconds"
	waited=0
	for storm in load $(echo "$round" | tr + ' '); do
		while [ ! -e $w/go."$storm" ] && wait_for "$storm"; do :; done
	done
	while [ -z "$STORM_NO_CHECKER" ] && [ "$(wc -l <$w/readings)" -lt "$readings" ] &&
		! grep -q '^FAIL' $w/out.checker && wait_for checker; do :; done
	case $round in
	*hotplug*) ;;
	*) while ! enough && wait_for stealing; do :; done ;;
	esac
	for storm in load $(echo "$round" | tr + ' '); do
		[ -e $w/go."$storm" ] || fail "$storm did too little in $seconds seconds and $waited sleeps"
	done
	[ -n "$STORM_NO_CHECKER" ] || [ "$(wc -l <$w/readings)" -ge "$readings" ] || fail 'the checker was read too seldom'
	rm -f $w/go
	[ -z "$strict" ] || start_fair_servers

	# Everything has to end by itself. The helper gives its tasks 60 s.
	waited=0
	for p in $pids; do
		while [ -d /proc/"${p#*:}" ] && ! grep -q '^State:.*zombie' /proc/"${p#*:}"/status 2>/dev/null && [ $waited -lt 90 ]; do
			sleep 1
			waited=$((waited + 1))
		done
		if [ $waited -ge 90 ]; then
			fail "${p%:*} does not end"
			echo w >/proc/sysrq-trigger
			[ $waited -gt 90 ] || timers
			waited=91
			kill -9 "${p#*:}" 2>/dev/null
		fi
	done
	wait
	chrt -o -p 0 $$ >/dev/null || exit 2
	for p in $pids; do
		storm=${p%:*}
		cat $w/out."$storm"
		sed -n 's/^lost task //p' $w/out."$storm" | while read -r t; do
			for t in "$t" $(cat /proc/[0-9]*/stat 2>/dev/null | awk -v parent="$t" '$4 == parent { print $1 }'); do
				cat /proc/"$t"/stat /proc/"$t"/sched
			done
		done
		! grep -q '^FAIL\|^lost' $w/out."$storm" || bad=1
		grep -q '^storm .* unsupported\|operations [1-9]\|^checker readings [1-9]' $w/out."$storm" || fail "$storm has not ended well"
	done
	enough || fail 'too little was stolen'
	if [ -z "$STORM_NO_CHECKER" ]; then
		in_round | awk '{ print "steals", $1, "failed", $2 }'
		# Once more, with nothing going on;
		# in a subshell, or what "urgent" does would stay for the rounds to come
		(checker) >$w/out.last
		! grep '^FAIL' $w/out.last || { cat $w/out.last; bad=1; }
	fi
	case $round in
	*ext*)
		# the kernel's own count, since boot
		echo "sched_ext enabled $(cat /sys/kernel/sched_ext/enable_seq 2>/dev/null || echo 0)"
		;;
	esac
	if [ $bad = 0 ]; then
		echo "round $round seconds $seconds good"
	else
		echo "round $round seconds $seconds bad"
		worst=1
	fi
done
[ $worst = 0 ] || exit 1
