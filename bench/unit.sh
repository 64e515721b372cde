# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # variables that the other file uses, or sets
#
# hackbench-unit and loads-unit source this after lib.sh. It runs a collector on a simulated machine. They set out, unit (the
# name of the unit), about (for messages), cpus, slot and timeout, machine_options (an array), and collector (one of these
# arrays).

# The collector first, then the files that it needs beside it.
hackbench_collector=("$top"/bench/{run-hackbench.sh,switch.sh,hackbench-table.awk,llc.awk})
loads_collector=("$top"/bench/{run-loads.sh,switch.sh})

# begin_unit: makes $work; at every exit, kills the machine and deletes partial results.
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

# collect LABEL IMAGE SEED ARG...: boots IMAGE and runs the collector there with these arguments. $work/LABEL/files then has
# what the collector wrote to /tmp/out.
collect() {
	local label=$1 image=$2 seed=$3 here=$work/$1 ended=0 file add=()
	shift 3
	mkdir "$here"
	for file in "${collector[@]}"; do
		add+=(--add "$file")
	done
	# The machine has no disk, so its standard output is a tar archive. The collector's messages go in there, too.
	# shellcheck disable=SC2016  # the guest's shell expands it
	setpriv --pdeathsig TERM "$top/sim/machine" "${machine_options[@]}" "${add[@]}" --timeout "$timeout" --kernel "$image" \
		--seed "$seed" --pin "$cpu" --status "$out/.status-$unit" --log "$here/log" -- \
		env STEAL_SIM="$STEAL_SIM" STEAL_PROJECT="$STEAL_PROJECT" STEAL_SESSION="$unit-$label" sh -c '
			mkdir /tmp/out
			sh "$0" "$@" >/tmp/out/messages 2>&1
			ended=$?
			if [ $ended = 0 ]; then tar -cf - -C /tmp/out .; else cat /tmp/out/messages; fi
			exit $ended' "/opt/${collector[0]##*/}" "$@" >"$here/output" 2>"$here/errors" &
	machine=$!
	wait "$machine" || ended=$?
	machine=''
	if [ "$ended" != 0 ]; then
		cat "$here/errors" "$here/output" "$here/log" >"$out/failed-$unit.log" 2>/dev/null || true
		grep -a -h -E 'error|splat' "$here/errors" "$here/output" | tail -n 5 >&2 || true
		say "error: $about, $label: status $ended; see $out/failed-$unit.log"
		exit "$ended"
	fi
	mkdir "$here/files"
	tar -C "$here/files" -xf "$here/output" || die "$here/output: not an archive, although the collector ended with status 0"
}

# host_record LABEL: prints how much time of this host the machine took
host_record() {
	echo "begin host $unit-$1"
	awk 'NF == 2' "$out/.status-$unit"
	awk '{ v[$1] = $2 } END { print "host_per_virtual " v["host_seconds"] / v["virtual_seconds"] }' \
		"$out/.status-$unit"
	echo 'end host'
}
