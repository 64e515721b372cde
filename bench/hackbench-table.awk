# SPDX-License-Identifier: GPL-2.0
#
# Makes the table from the records of run-hackbench.sh; needs POSIX awk only.
# Usage: awk -f hackbench-table.awk [-v same="KEY..."] [-v session=ID] RECORDS
#
# Sessions with the same lines KEY share a table; without -v same each session has its own. run-hackbench.sh passes the list of
# switch.sh.
#
# A figure of a run is an average over the CPUs; the table shows the median of the runs.
# From the cpu lines of /proc/schedstat (the same nine fields in versions 15, 16 and 17):
#
#	3 sched_count	schedule() called			-> sched
#	4 sched_goidle	schedule() made the CPU idle		-> idle
#	5 ttwu_count	wakeups					-> wake
#	7 rq_cpu_time	ns in which tasks ran			-> %busy, slice
#	9 pcount	time slices				-> slice
#
# and from the cpu lines of sched/idle_search: steals, failed attempts, ns in newly idle balancing,
# ns in stealing.
#
# The kernel overstates rq_cpu_time: for a task that is preempted after it set its state to sleep,
# the kernel misses the start of the next run, and counts the wait as running time
# (sched_info_depart() and sched_info_arrive()). If this is frequent, as on slow emulated CPUs,
# %busy exceeds 100. The table shows it unchanged.
#
# awk computes in doubles. Nanoseconds above 2^53 (104 days) lose their lowest bits; a difference may
# be wrong by a few ns, which does not matter here.
# Numbers are printed with %.0f because %d has 32 bits in some awks.

function note(text) {
	print "hackbench-table: " text | "cat 1>&2"
}

# The 32-bit counters wrap.
function delta(after, before) {
	after -= before
	return after < 0 ? after + 4294967296 : after
}

function begin(what, id) {
	if (rec != "")
		note("incomplete " rec " record before line " NR ": ignored")
	rec = what
	split("", v)
	split("", all)
	split("", cpus)
	n = 0
	id_of_rec = id
	if (what == "session" && !(id in known)) {
		known[id] = 1
		order[++sessions] = id
	}
}

# The record is complete: keep the values for the table.
function finish(    i, c, busy, slices, sched, idle, wake, steal, find, window, side, key, why) {
	if (rec == "host")
		return
	if (rec == "session") {
		for (i in v)
			info[id_of_rec, i] = v[i]
		key = ""
		n = split(same, same_in, " ")
		for (i = 1; i <= n; i++)
			key = key all[same_in[i]] SUBSEP
		if (!n || !("sides" in v) || !(key in comparison))
			comparison[key] = id_of_rec
		alias[id_of_rec] = comparison[key]
		return
	}
	if (id_of_rec in alias)
		id_of_rec = alias[id_of_rec]
	if (!(id_of_rec in known)) {
		known[id_of_rec] = 1
		order[++sessions] = id_of_rec
	}
	side = v["side"]
	if (!((id_of_rec, v["groups"]) in seen)) {
		seen[id_of_rec, v["groups"]] = 1
		group[id_of_rec, ++ngroups[id_of_rec]] = v["groups"]
	}
	if (v["exit"] != 0) {
		failed[id_of_rec]++
		return
	}
	why = v["valid"] == "yes" ? "" : v["valid"]
	window = v["after", "clock"] - v["before", "clock"]
	if (why == "" && (n == 0 || window <= 0))
		why = "no CPUs or no time"
	for (i = 1; i <= n && why == ""; i++) {
		c = cpus[i]
		if (!(("before", c, 3) in v) || !(("after", c, 3) in v)) {
			why = c " is not in both snapshots"
			break
		}
		busy += v["after", c, 7] - v["before", c, 7]
		sched += delta(v["after", c, 3], v["before", c, 3])
		idle += delta(v["after", c, 4], v["before", c, 4])
		wake += delta(v["after", c, 5], v["before", c, 5])
		slices += delta(v["after", c, 9], v["before", c, 9])
		steal += v["after", c, "steals"] - v["before", c, "steals"]
		find += v["after", c, "newidle"] - v["before", c, "newidle"]
		find += v["after", c, "steal"] - v["before", c, "steal"]
	}
	if (why != "") {
		invalid[id_of_rec]++
		note("run " v["number"] " of session " id_of_rec " is not used: " why)
		return
	}
	key = id_of_rec SUBSEP v["groups"] SUBSEP side
	i = ++runs[key]
	value[key, "time", i] = v["time"] + 0
	value[key, "busy", i] = 100 * busy / (window * n)
	if (slices > 0) {
		value[key, "slice", i] = busy / slices / 1e6
	}
	value[key, "sched", i] = sched / n
	value[key, "idle", i] = idle / n
	value[key, "wake", i] = wake / n
	if (v["before", "idle_search"] == 1 && v["after", "idle_search"] == 1) {
		value[key, "find", i] = 100 * find / (window * n)
		value[key, "steal", i] = steal / n
	}
}

# sort(key, name): the values of all runs to s[1..], smallest first; returns 0 if a run has none.
function sort(key, name,    i, j, x) {
	split("", s)
	for (i = 1; i <= runs[key]; i++) {
		if (!((key, name, i) in value))
			return 0
		x = value[key, name, i]
		for (j = i - 1; j >= 1 && s[j] > x; j--)
			s[j + 1] = s[j]
		s[j + 1] = x
	}
	return runs[key]
}

function median(key, name, format,    k) {
	k = sort(key, name)
	if (!k)
		return "-"
	return sprintf(format, k % 2 ? s[(k + 1) / 2] : (s[k / 2] + s[k / 2 + 1]) / 2)
}

function row(id, g, side, base,    key, off, speedup, mark, low, high) {
	key = id SUBSEP g SUBSEP side
	if (!runs[key])
		return
	any = 1
	off = id SUBSEP g SUBSEP base
	speedup = mark = "-"
	if (side != base && runs[off]) {
		if (median(key, "time", "%.9f") + 0 > 0)
			speedup = sprintf("%.1f", 100 * (median(off, "time", "%.9f") / median(key, "time", "%.9f") - 1))
		sort(off, "time")
		low = s[1]
		high = s[runs[off]]
		sort(key, "time")
		mark = runs[key] < 2 || runs[off] < 2 || (s[1] <= high && s[runs[key]] >= low) ? "yes" : "no"
	}
	if (median(key, "busy", "%.2f") + 0 > 100)
		above = 1
	sort(key, "time")
	printf "%4s %" width "s %9s %6s %7s %8s %8s %8s %6s %7s %8s %5s %17s %7s\n", g, side,
		median(key, "time", "%.3f"), median(key, "busy", "%.2f"), median(key, "slice", "%.3f"),
		median(key, "sched", "%.0f"), median(key, "idle", "%.0f"), median(key, "wake", "%.0f"),
		median(key, "find", "%.2f"), median(key, "steal", "%.0f"), speedup, runs[key],
		span(key), mark
}

function span(key) {
	sort(key, "time")
	return sprintf("%.3f-%.3f", s[1], s[runs[key]])
}

function table(id,    i, j, n, side) {
	any = above = 0
	n = split((id, "sides") in info ? info[id, "sides"] : "off on", side, " ")
	width = 4
	for (j = 1; j <= n; j++)
		if (length(side[j]) > width)
			width = length(side[j])
	if ((id, "release") in info) {
		print "kernel:    " info[id, "release"] " " info[id, "version"] " " info[id, "machine"]
		print "CPUs:      " info[id, "cpus"] " (" info[id, "online"] "), LLCs: " info[id, "llcs"] ", " info[id, "model"]
		print "command:   " info[id, "hackbench"] ", " info[id, "hackbench_version"]
		print "patches:   " info[id, "project"]
		print "schedstat: version " info[id, "schedstat"] "; session " id
	} else {
		print "session " id " (without description)"
	}
	printf "%4s %" width "s %9s %6s %7s %8s %8s %8s %6s %7s %8s %5s %17s %7s\n", "grps", "side", "time",
		"%busy", "slice", "sched", "idle", "wake", "%find", "steal", "%speedup", "runs", "min-max", "overlap"
	for (i = 1; i <= ngroups[id]; i++) {
		for (j = 1; j <= n; j++)
			row(id, group[id, i], side[j], side[1])
	}
	if (above)
		print "%busy above 100: the kernel counts some waiting time as running; see hackbench-table.awk"
	if (failed[id])
		print "failed runs, not in the table: " failed[id]
	if (invalid[id])
		print "invalid runs, not in the table: " invalid[id]
	if (any)
		shown++
	else
		print "no run to show"
}

$1 == "begin" {
	begin($2, $3)
	next
}

rec == "" {
	if (NF)
		stray++
	next
}

$1 == "end" && $2 == rec && NF == 2 {
	finish()
	rec = ""
	next
}

$1 == "before" || $1 == "after" {
	if ($2 == "clock")
		v[$1, "clock"] = $3
	else if ($2 == "schedstat" && $3 ~ /^cpu[0-9]/) {
		if (NF != 12) {
			v["valid"] = "the line of " $3 " has " NF - 3 " fields, not 9"
			next
		}
		if ($1 == "after")
			cpus[++n] = $3
		for (f = 1; f <= 9; f++)
			v[$1, $3, f] = $(f + 3)
	} else if ($2 == "idle_search" && $3 == "version")
		v[$1, "idle_search"] = $4
	else if ($2 == "idle_search") {
		v[$1, $3, "steals"] = $4
		v[$1, $3, "newidle"] = $6
		v[$1, $3, "steal"] = $7
	}
	next
}

{
	key = $1
	sub(/^[^ ]* ?/, "")
	if (!(key in v))
		v[key] = $0
	all[key] = all[key] $0 "\n"
}

END {
	if (rec != "")
		note("the last record (" rec ") is incomplete: ignored")
	if (stray)
		note(stray " lines belong to no record: ignored")
	for (i = 1; i <= sessions; i++)
		if ((session == "" || session == order[i]) && (!(order[i] in alias) || alias[order[i]] == order[i])) {
			if (printed++)
				print ""
			table(order[i])
		}
	exit shown ? 0 : 1
}
