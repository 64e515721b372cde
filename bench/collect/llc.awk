# SPDX-License-Identifier: GPL-2.0
#
# Prints for each CPU of which it is known the CPUs that share its last-level cache, as the
# scheduler sees it: "cpu3 0-19".
#
# Input: the lines of the files sched/domains/cpu*/domain*/flags in debugfs that have SD_SHARE_LLC, with
# their names (grep), then /proc/schedstat, which has the CPUs of each domain as a mask in
# hexadecimal digits. The LLC is the widest domain with the flag, or the CPU alone.

# list MASK: as a list of ranges
function list(mask,    text, n, i, b, digit, first, last) {
	gsub(/,/, "", mask)
	first = -1
	text = ""
	n = 0
	for (i = length(mask); i > 0; i--) {
		digit = index("0123456789abcdef", substr(mask, i, 1)) - 1
		for (b = 0; b < 4; b++) {
			if (digit % 2) {
				if (first < 0)
					first = n
				last = n
			}
			if (first >= 0 && last < n) {
				text = text (text == "" ? "" : ",") (first == last ? first : first "-" last)
				first = -1
			}
			digit = int(digit / 2)
			n++
		}
	}
	if (first >= 0)
		text = text (text == "" ? "" : ",") (first == last ? first : first "-" last)
	return text
}

/SD_SHARE_LLC/ {
	n = split($1, part, "/")
	cpu = part[n - 2]
	sub(/^domain/, "", part[n - 1])
	level = part[n - 1] + 0
	if (!(cpu in widest) || level > widest[cpu])
		widest[cpu] = level
	known = 1
	next
}

/^cpu[0-9]/ {
	cpu = $1
	if (known && !(cpu in widest))
		print cpu, substr(cpu, 4)
}

/^domain[0-9]/ && cpu in widest && $1 == "domain" widest[cpu] {
	# version 17 has the domain's name before the mask
	mask = version >= 17 ? $3 : $2
	if (!(mask in lists))
		lists[mask] = list(mask)
	print cpu, lists[mask]
}

/^version/ {
	version = $2
}
