# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154  # variables that the other file uses, or sets
#
# What run-hackbench.sh and run-loads.sh share, and source: the sides that are compared, switching the scheduler's
# features between them and back, the records' head, and which runs a directory has already.
#
# They set prog, dir and command_line before, call read_sides and find_features, and put_back on every way out.

LC_ALL=C
export LC_ALL
set -u

# The two variables are for the tests, which have their own files there.
proc=${STEAL_PROC:-/proc}
sys=${STEAL_SYS:-/sys}
debug=$sys/kernel/debug
features=$debug/sched/features
nl='
'
old_features='' mounted='' clock=''

# The lines of a session record that are the same in all sessions of one comparison. compare_sessions, hackbench-table.awk and
# reportlib/records.py use this list.
same='release version machine boot online cpus llcs topology model sim hackbench hackbench_version scale sides side_features'

say() { printf '%s: %s\n' "$prog" "$*" >&2; }
die() { say "error: $*"; exit 1; }
wrong() { say "error: $*; see --help"; exit 2; }

# read_sides WORDS ONLY: the value of --features as LABEL=FEATURE+FEATURE, in the list $sides; ONLY, of --only, is one
# of the labels, or empty.
read_sides()
{
	sides=
	for w in $(echo "$1" | tr , ' '); do
		case $w in
		*=*) side=$w ;;
		*) side=$w=$w ;;
		esac
		case $side in
		=*|*=*=*|*[!A-Za-z0-9_+.=-]*) wrong "not a side: $w (--features)" ;;
		esac
		case " $sides" in
		*" ${side%%=*}="*) wrong "two sides are called ${side%%=*} (--features)" ;;
		esac
		sides="$sides$side "
	done
	case " $sides" in
	*" ${2:+$2=}"*) ;;
	*) wrong "no side is called $2 (--only)" ;;
	esac
}

# features_of LABEL: of that side, in one line
features_of()
{
	for s in $sides; do
		[ "${s%%=*}" != "$1" ] || echo "${s#*=}" | tr + ' '
	done
}

# has FEATURE: is it in that state? (STEAL, or NO_STEAL)
has()
{
	line=$(cat "$features" 2>/dev/null)
	case " $line " in
	*" $1 "*) return 0 ;;
	esac
	return 1
}

# find_features COMMAND: how those of the sides are set now, in the list $was; where they cannot be switched, COMMAND
# is called with the reason, and does not return.
find_features()
{
	[ -d "$debug" ] || "$1" "$debug: no such directory, so this kernel has no debugfs and no scheduler features"
	[ -w "$debug" ] || "$1" "$debug is not writable (not root?), so this script cannot see whether the kernel has STEAL"
	if [ ! -e "$features" ]; then
		if mount -t debugfs debugfs "$debug" 2>/dev/null; then
			mounted=$debug
		fi
	fi
	[ -e "$features" ] || "$1" "$features: no such file, so this kernel has no scheduler features to switch"
	was=
	for f in $(for s in $sides; do features_of "${s%%=*}"; done | tr ' ' '\n' | sort -u); do
		f=${f#NO_}
		if has "$f"; then
			was="$was$f "
		elif has "NO_$f"; then
			was="${was}NO_$f "
		else
			"$1" "$features: kernel $(uname -r) has no $f"
		fi
	done
}

# set_side LABEL: switch to its features; those that only other sides name are as they were found.
set_side()
{
	old_features=$was
	set_to=$(features_of "$1")
	for f in $was; do
		case " $set_to " in
		*" ${f#NO_} "*|*" NO_${f#NO_} "*) ;;
		*) set_to="$f $set_to" ;;
		esac
	done
	for f in $set_to; do
		{ echo "$f" >"$features"; } 2>/dev/null
		has "$f" || die "$features does not show $f after writing it (is debugfs locked down?)"
	done
}

# put_back: the features, and what was mounted
put_back()
{
	for f in $old_features; do
		{ echo "$f" >"$features"; } 2>/dev/null
		has "$f" || say "cannot restore: echo $f >$features"
	done
	old_features=
	for m in $mounted; do
		umount "$m" || say "cannot restore: umount $m"
	done
	mounted=
}

# descendants PID: the processes that it has started, and those they have
descendants()
{
	cat /proc/[0-9]*/stat 2>/dev/null | awk -v of="$1" '
		{ pid = $1; sub(/.*\) /, ""); parent[pid] = $2 }
		END {
			is[of] = more = 1
			while (more) {
				more = 0
				for (p in parent)
					if (is[parent[p]] && !is[p])
						is[p] = more = 1
			}
			for (p in parent)
				if (is[p] && p != of)
					print p
		}'
}

# end_all PID: ask this process to end, and a second later end it and what it has started.
end_all()
{
	children=$(descendants "$1")
	kill "$1"
	sleep 1
	# shellcheck disable=SC2086 # a list of numbers
	kill -KILL "$1" $children
	wait "$1"
} 2>/dev/null

# begin_raw FILE: begin it, or go on with it. A record that an earlier session could not finish may lack its newline.
begin_raw()
{
	last=$(tail -c 1 "$1" 2>/dev/null)
	printf '%s' "${last:+$nl}" >>"$1" || die "cannot write $1"
}

# find_clock: timer_list counts ns, uptime 10 ms.
find_clock()
{
	clock=timer_list
	[ -n "$(sed -n '/^now at /{p;q;}' "$proc/timer_list" 2>/dev/null)" ] || clock=uptime
}

# now: monotonic nanoseconds in $time_now. By the shell alone: to start a program would take as long
# as a short run's start.
now()
{
	time_now=0
	if [ "$clock" = timer_list ]; then
		while read -r word at time_now rest; do
			[ "$word $at" != 'now at' ] || return
		done <"$proc/timer_list"
	else
		read -r time_now rest <"$proc/uptime"
		time_now=${time_now%.*}${time_now#*.}0000000
	fi
}

online() { cat "$sys/devices/system/cpu/online"; }

# describe_machine: the lines that each session has, of the project, the machine and the sides
describe_machine()
{
	model=$(awk -F ': ' '/^model name/ { print $2; exit }' "$proc/cpuinfo" 2>/dev/null)
	echo "format 1"
	echo "date $(date -u +%Y-%m-%dT%H:%M:%SZ)"
	# set where there is no checkout, as in a guest
	echo "project ${STEAL_PROJECT:-$(git -C "$dir" describe --always --dirty --tags 2>/dev/null || echo unknown)}"
	echo "command $command_line"
	echo "release $(uname -r)"
	echo "version $(uname -v)"
	echo "machine $(uname -m)"
	echo "boot $(cat "$proc/cmdline" 2>/dev/null)"
	echo "features $(cat "$features")"
	echo "sides $(for s in $sides; do printf '%s ' "${s%%=*}"; done)"
	for s in $sides; do
		echo "side_features ${s%%=*} ${s#*=}"
	done
	echo "clock $clock"
	echo "model ${model:-unknown}"
	echo "online $(online)"
	# what the machine that is simulated says of itself, one to a line
	[ -z "${STEAL_SIM:-}" ] || echo "$STEAL_SIM" | sed 's/^/sim /'
}

# compare_sessions FILE SESSION: stop if a session in FILE is not of the same comparison ($same) as the one in the file SESSION.
compare_sessions()
{
	[ -s "$1" ] || return 0
	keys="^($(echo "$same" | tr ' ' '|')) "
	sed -n 's/^begin session //p' "$1" >"$tmp/sessions"
	while read -r s; do
		sed -n "/^begin session $s\$/,/^end session/p" "$1" | grep -E "$keys" >"$tmp/theirs"
		grep -E "$keys" "$2" | diff "$tmp/theirs" - >"$tmp/differs" || {
			sed "s/^/$prog: /" "$tmp/differs" >&2
			die "$1 has runs of another machine, kernel or comparison (see above; < is from $1, > is from this machine now); choose another --out"
		}
	done <"$tmp/sessions"
}

# find_done FILE KEY: the runs that are there, and valid, to $tmp/done, as PAIR, the value of KEY, and SIDE
find_done()
{
	awk -v key="$2" '$1 == "begin" { split("", v) } { v[$1] = $2 }
		$1 == "end" && $2 == "run" && v["exit"] == 0 && v["valid"] == "yes" { print v["pair"], v[key], v["side"] }' \
		"$1" >"$tmp/done"
}
is_done() { grep -q -x -F "$1 $2 $3" "$tmp/done"; }

# to_do FUNCTION FIRST RUNS ONLY WHAT...: call FUNCTION with PAIR, one of WHAT, and SIDE for each run that is to be done,
# in order. The sides are neighbours, and take turns at going first, so that a drift of the machine hits all alike. All of
# WHAT have had their turn before any has its second.
to_do()
{
	function=$1 pair=$2 end=$(($2 + $3)) side_only=$4
	shift 4
	while [ "$pair" -lt "$end" ]; do
		for what; do
			order=
			for s in $sides; do
				if [ $((pair % 2)) -eq 1 ]; then
					order="$order ${s%%=*}"
				else
					order="${s%%=*} $order"
				fi
			done
			for s in $order; do
				[ "$s" = "${side_only:-$s}" ] || continue
				is_done "$pair" "$what" "$s" || "$function" "$pair" "$what" "$s"
			done
		done
		pair=$((pair + 1))
	done
}
