# SPDX-License-Identifier: GPL-2.0
#
# Reads a preset of sim/machine, a file with a key and a value on each line, and prints it as arguments of the
# simulator's plugin. If the file is no good it prints the first fault to stderr and ends with exit status 2.
#
# Set -v smt=FRACTION to replace the file's value.

function wrong(text, line) {
	if (!failed)
		print "machine: error: " FILENAME (line ? ", line " line : "") ": " text > "/dev/stderr"
	failed = 1
	exit 2
}

# number KEY LEAST MOST
function bounds(key, least, most) {
	known[key] = ++nr_keys
	order[nr_keys] = key
	low[key] = least
	high[key] = most
}

BEGIN {
	bounds("smt", 0.5, 1)
	sizes = nr_keys + 1
	bounds("l1_kib", 1, 1024)
	bounds("l1_ways", 1, 64)
	bounds("l1i_kib", 1, 1024)
	bounds("l1i_ways", 1, 64)
	bounds("l2_kib", 1, 65536)
	bounds("l2_ways", 1, 64)
	bounds("llc_kib", 1, 1048576)
	bounds("llc_ways", 1, 64)
	costs = nr_keys + 1
	bounds("l2_ns", 0, 10000)
	bounds("llc_ns", 0, 10000)
	bounds("sibling_ns", 0, 10000)
	bounds("core_ns", 0, 10000)
	bounds("other_llc_ns", 0, 10000)
	bounds("other_node_ns", 0, 10000)
	bounds("memory_ns", 0, 10000)
	bounds("other_memory_ns", 0, 10000)
	bounds("upgrade_ns", 0, 10000)
}

/^[ \t]*(#|$)/ { next }

{
	if (!($1 in known))
		wrong("unknown key '" $1 "'", FNR)
	if (NF != 2)
		wrong("not a key and a value", FNR)
	if ($1 in value)
		wrong("'" $1 "' is there twice", FNR)
	if ($2 !~ /^[0-9]+(\.[0-9]+)?$/ || length($2) > 12)
		wrong($1 " '" $2 "' is not a number", FNR)
	if (known[$1] >= sizes && known[$1] < costs && $2 !~ /^[0-9]+$/)
		wrong($1 " '" $2 "' is not a whole number", FNR)
	if ($2 + 0 < low[$1] || $2 + 0 > high[$1])
		wrong($1 " " $2 " is not between " low[$1] " and " high[$1], FNR)
	value[$1] = $2
	at[$1] = FNR
	if ($1 != "smt")
		caches = 1
}

# sets LEVEL: their number must be a power of two, as lines choose them by bits of their address
function sets(level,    n, kib, ways) {
	kib = value[level "_kib"]
	ways = value[level "_ways"]
	n = kib * 16 / ways
	while (n > 1)
		n /= 2
	if (n != 1)
		wrong(kib " KiB with " ways " ways make " kib * 16 / ways " sets of lines of 64 bytes; this must be a power of two",
		      at[level "_kib"])
}

# rises KEY1 KEY2: the second may not be less than the first
function rises(less, more) {
	if (value[less] + 0 > value[more] + 0)
		wrong(less " " value[less] " is more than " more " " value[more], at[less])
}

END {
	if (failed)
		exit 2
	if (!("smt" in value))
		wrong("'smt' is missing")
	for (i = sizes; caches && i <= nr_keys; i++)
		if (!(order[i] in value))
			wrong("'" order[i] "' is missing")
	if (caches) {
		sets("l1")
		sets("l1i")
		sets("l2")
		sets("llc")
		rises("l1_kib", "l2_kib")
		rises("l1i_kib", "l2_kib")
		rises("l2_ns", "llc_ns")
		rises("llc_ns", "memory_ns")
		rises("memory_ns", "other_memory_ns")
		rises("sibling_ns", "core_ns")
		rises("llc_ns", "core_ns")
		rises("core_ns", "other_llc_ns")
		rises("other_llc_ns", "other_node_ns")
	}
	if (smt != "")
		value["smt"] = smt
	text = "smt=" value["smt"]
	for (i = sizes; caches && i <= nr_keys; i++)
		text = text "," order[i] "=" value[order[i]]
	print text
}
