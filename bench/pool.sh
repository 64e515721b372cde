# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables that the other file uses, or sets
#
# bench/in-sim and bench/in-sim-loads source this after lib.sh. It checks the options of the machines, opens or continues
# a directory of results, and runs the units of work, one on each host core at a time.

# shellcheck source=bench/unit.sh
. "$top/bench/unit.sh"

# machine_kind: checks $machine, $jobs, $quantum, $ips, $idle_exit and $timeout, and makes $sim_options from them and $append.
machine_kind() {
	local n
	for n in "$jobs" "$quantum" "$ips" ${timeout:+"$timeout"}; do
		[[ $n =~ ^[1-9][0-9]*$ ]] || wrong "not a positive number: $n"
	done
	[[ $idle_exit =~ ^[0-9]+$ ]] || wrong "--idle-exit '$idle_exit' is not a number"
	[ "$jobs" -le "$(nproc)" ] || wrong "--jobs $jobs: this host has $(nproc) cores"
	sim_options=(--quantum "$quantum" --ips "$ips" --idle-exit "$idle_exit" --machine "$machine")
	[ -z "$append" ] || sim_options+=(--append "$append")
	[[ $machine =~ ^[1-9][0-9]*x[1-9][0-9]*x[1-9][0-9]*$ ]] || wrong "--machine '$machine' is not SOCKETSxCORESxTHREADS"
}

# prepare_host: installs what is missing, and puts the host CPUs in the list $cpu_list
prepare_host() {
	"$top/scripts/setup" >&2
	need parallel python3 setpriv
	cpu_list=$(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)), sep=",")')
}

# image_of KERNEL: prints the path of the kernel image; KERNEL is a file or one of the words base and patched, which are
# built. bash ignores errexit in $(image_of ...), so each command here checks its status.
image_of() {
	local image=$1
	case $1 in
	patched)
		"$top/scripts/apply" >&2 &&
			image=$("$top/scripts/build" --arch arm64 --config guest,steal,sim) || return
		;;
	base)
		image=$("$top/scripts/worktree" base --upto 0) &&
			image=$("$top/scripts/build" --arch arm64 --config guest,steal,sim --tree "$image") || return
		;;
	esac
	realpath "$image"
}

# open_out NAME: makes the directory $out (default: NAME-DATE-TIME) and locks it.
open_out() {
	out=${out:-$PWD/$1-$(date +%Y%m%d-%H%M%S)}
	mkdir -p "$out" || die "cannot make the directory $out (--out)"
	out=$(realpath "$out")
	exec 9>"$out/.lock"
	flock -n 9 || die "$out: in use by another call; wait for it to end, or choose another --out"
	# left over from a call that was killed
	rm -rf "$out"/.unit-* "$out"/.status-*
}

# make_plan FILE...: writes $out/plan: what all runs of the directory have in common. It consists of the machine, a hash of
# the files that go to the machine (FILE...), and the lines on standard input. Fails if the directory has another plan.
make_plan() {
	{
		echo "machine $machine"
		echo "qemu $("${STEAL_QEMU:-qemu-system-aarch64}" --version | sed -n '1s/.*version //p')"
		echo "simulator $(cat "$top"/sim/qemu/*.[ch] | sha256sum | cut -c 1-16)"
		echo "collector $(cat "$@" | sha256sum | cut -c 1-16)"
		echo "quantum_ns $quantum"
		echo "ips $ips"
		echo "idle_exit_ns $idle_exit"
		[ -z "$append" ] || echo "append $append"
		cat
	} >"$out/.plan"
	if [ -f "$out/plan" ] && ! diff "$out/plan" "$out/.plan" >&2; then
		rm "$out/.plan"
		die "$out has runs of another comparison (see above; < is from its plan, > is from this command); choose another --out"
	fi
	mv "$out/.plan" "$out/plan"
	STEAL_PROJECT=$(git -C "$top" describe --always --dirty --tags 2>/dev/null) || STEAL_PROJECT=unknown
	STEAL_SIM="topology $machine
quantum_ns $quantum
ips $ips
idle_exit_ns $idle_exit${append:+
append $append}
not_modelled caches, memory latency, cost of moving cache lines, threads of a core sharing it, turbo, \
depth of idle states"
	export STEAL_PROJECT STEAL_SIM
}

# stop STATUS: ends the machines after a signal
# shellcheck disable=SC2317  # the traps call it
stop() {
	local pid
	trap '' INT TERM HUP
	for pid in $watch $pool; do
		kill "$pid" 2>/dev/null || true
	done
	wait
	say "interrupted; to continue: the same command with --out $out"
	exit "$1"
}

# progress: prints how many units are done, how long the rest may take, and how fast the machines are
progress() {
	local left left_weight now
	left=$(list | wc -l)
	left_weight=$(list | awk '{ w += $1 } END { print w + 0 }')
	now=$(cat "$out"/.status-* 2>/dev/null | awk '{ v[$1] += $2 } END {
		if (v["host_seconds"]) printf "; now %.2f s of virtual time in %.0f s, %.0f host s a virtual s",
			v["virtual_seconds"], v["host_seconds"], v["host_seconds"] / (v["virtual_seconds"] + 1e-9) }') || true
	if [ "$left_weight" -lt "$all_weight" ]; then
		now="; about $(((SECONDS - begin) * left_weight / (all_weight - left_weight))) s left$now"
		say "$((all - left)) of $all units after $((SECONDS - begin)) s$now"
	else
		say "0 of $all units after $((SECONDS - begin)) s$now"
	fi
}

# do_units COMMAND [ARG...]: runs COMMAND for each line that the caller's function list prints. A line is a missing unit; its
# first word is a weight. {2} and so on in the arguments stand for the other words of the line. $failed is the status.
do_units() {
	watch='' pool='' failed=0
	list >"$out/.todo"
	all=$(wc -l <"$out/.todo")
	all_weight=$(awk '{ w += $1 } END { print w + 0 }' "$out/.todo")
	if [ "$all" = 0 ]; then
		say "all runs are in $out already"
		return
	fi
	trap 'stop 130' INT
	trap 'stop 143' TERM HUP
	say "$all units on $jobs host core(s); results go to $out"
	begin=$SECONDS
	# The sleep may outlive this script, so it must not hold the lock or a pipe.
	while sleep 20 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do progress; done 9>&- &
	watch=$!
	# In the background because bash runs a trap only between commands.
	setpriv --pdeathsig TERM parallel --will-cite --quote --jobs "$jobs" --line-buffer --colsep ' ' \
		--termseq TERM,10000,KILL,100 "$@" <"$out/.todo" >&2 9>&- &
	pool=$!
	wait "$pool" || failed=$?
	pool=''
	kill "$watch" 2>/dev/null || true
	wait "$watch" 2>/dev/null || true
	watch=''
	progress
}

# report_failed: ends with an error if units failed
report_failed() {
	[ "$failed" = 0 ] || die "$(list | wc -l) of $all units failed (see above); to try them again: the same command with --out $out"
}
