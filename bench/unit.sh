# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154  # variables that the other file sets
#
# What hackbench-unit and loads-unit share, and source after lib.sh: a collector's run on a simulated machine of its
# own. They set out, unit (its name), about (for messages), cpus, slot and timeout, and machine_options (an array).

# begin_unit: whatever happens, no machine and no half result stays behind.
begin_unit() {
	cpu=$(cut -d , -f "$slot" <<<"$cpus")
	work=$(mktemp -d "$out/.unit-$unit-XXXXXX")
	machine=''
	trap cleanup EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
}

# shellcheck disable=SC2317  # the traps call it
cleanup() {
	if [ -n "$machine" ]; then
		kill "$machine" 2>/dev/null || true
		wait "$machine" 2>/dev/null || true
	fi
	rm -rf "$work" "$out/.status-$unit"
}

# collect LABEL IMAGE SEED SCRIPT ARG...: boots IMAGE and runs SCRIPT of bench/ there with these arguments; what it
# writes to /tmp/out is then in $work/LABEL/files.
collect() {
	local label=$1 image=$2 seed=$3 script=$4 here=$work/$1 ended=0
	shift 4
	mkdir "$here"
	# The machine's output is an archive of what the collector made: it has no disk. Its messages
	# are for this side, too, and go in there.
	# shellcheck disable=SC2016  # the guest's shell expands it
	setpriv --pdeathsig TERM "$top/sim/machine" "${machine_options[@]}" --timeout "$timeout" --kernel "$image" \
		--seed "$seed" --pin "$cpu" --status "$out/.status-$unit" --log "$here/log" \
		--add "$top/bench/$script" --add "$top/bench/switch.sh" -- \
		env STEAL_SIM="$STEAL_SIM" STEAL_PROJECT="$STEAL_PROJECT" STEAL_SESSION="$unit-$label" sh -c '
			mkdir /tmp/out
			sh "$0" "$@" >/tmp/out/messages 2>&1
			ended=$?
			if [ $ended = 0 ]; then tar -cf - -C /tmp/out .; else cat /tmp/out/messages; fi
			exit $ended' "/opt/$script" "$@" >"$here/output" 2>"$here/errors" &
	machine=$!
	wait "$machine" || ended=$?
	machine=''
	if [ "$ended" != 0 ]; then
		cat "$here/errors" "$here/output" "$here/log" >"$out/failed-$unit.log" 2>/dev/null || true
		grep -a -h -E 'error|splat' "$here/errors" "$here/output" | tail -n 5 >&2 || true
		say "error: $about, $label: status $ended; all of it: $out/failed-$unit.log"
		exit "$ended"
	fi
	mkdir "$here/files"
	tar -C "$here/files" -xf "$here/output" || die "$here/output: not what the collector sends"
}

# host_record LABEL: what the machine cost this host
host_record() {
	echo "begin host $unit-$1"
	awk 'NF == 2' "$out/.status-$unit"
	awk '{ v[$1] = $2 } END { print "host_per_virtual " v["host_seconds"] / v["virtual_seconds"] }' \
		"$out/.status-$unit"
	echo 'end host'
}
