# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Sourced by the bash scripts of this repository: messages, options, the cache directory and the lines of kernels.
#
# Messages go to stderr. stdout carries only a script's result (a path, a table), so that
# one script can use another's output.

set -euo pipefail

prog=${0##*/}
# shellcheck disable=SC2034  # used by the scripts that source this file
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Downloads, kernel trees, builds, guest images and ccache live here, never in the checkout.
# shellcheck disable=SC2034  # used by the scripts that source this file
cache=${STEAL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sched-steal}
if [[ $cache != /* ]]; then
	# Also for the scripts that this one runs in another directory.
	cache=$PWD/$cache
	export STEAL_CACHE=$cache
fi

say() { printf '%s: %s\n' "$prog" "$*" >&2; }
die() { say "error: $*"; exit 1; }
# refuse MESSAGE...: end because of what the user gave.
refuse() { say "error: $*"; exit 2; }
# wrong MESSAGE...: end with a usage error.
wrong() { refuse "$*; see --help"; }

# at_end [PATH...]: when this script ends, also at a signal, end its background jobs and remove these paths. File systems that are
# mounted below them stay. bash waits for a program in the foreground before it ends at a signal.
at_end() {
	to_remove=("$@")
	trap end_jobs EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
}
# shellcheck disable=SC2317  # the trap calls it
end_jobs() {
	local pid
	trap '' INT TERM HUP
	for pid in $(jobs -p); do
		# of one that setsid has started, all processes
		kill -- "-$pid" 2>/dev/null || kill "$pid" 2>/dev/null || true
	done
	wait
	rm -rf --one-file-system "${to_remove[@]}" || true
}

# usage: print the comment block at the head of the calling script, without its '#'.
usage() { sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; }

# options SPEC ARG...: set variables from a script's arguments. SPEC lists the options without their dashes:
#
#   NAME    a flag: sets $NAME to "yes"
#   NAME=   takes a value, which is not empty: sets $NAME to it
#   NAME+=  the same, and may be repeated: appends the value to the array NAME
#
# For a dash inside NAME, the variable has an underscore. Other arguments go to the array "rest". The last word of SPEC
# says which of them the script takes; without such a word it takes none:
#
#   --      a command, after the argument "--"
#   ...     everything from the first argument that does not begin with a dash
#   *       every argument that SPEC does not name
#
# --help prints the usage text. An argument that the script does not take is a usage error.
options() {
	local spec=" ${1//[[:space:]]/ } " name
	shift
	rest=()
	while [ $# -gt 0 ]; do
		name=${1#--}
		if [ "$1" = --help ]; then
			usage
			exit 0
		elif [[ $1 =~ ^--[a-z][a-z0-9-]*$ && $spec == *" $name "* ]]; then
			declare -g "${name//-/_}=yes"
			shift
		elif [[ $1 =~ ^--[a-z][a-z0-9-]*$ && ($spec == *" $name= "* || $spec == *" $name+= "*) ]]; then
			[ -n "${2:-}" ] || wrong "$1 needs a value"
			if [[ $spec == *" $name+= "* ]]; then
				local -n values=${name//-/_}
				values+=("$2")
			else
				declare -g "${name//-/_}=$2"
			fi
			shift 2
		elif [[ $spec == *' * '* ]]; then
			rest+=("$1")
			shift
		elif [[ $1 = -- && $spec == *' -- '* ]]; then
			shift
			rest=("$@")
			return
		elif [[ $1 != -* && $spec == *' ... '* ]]; then
			rest=("$@")
			return
		elif [[ $1 != -* && $spec == *' -- '* ]]; then
			wrong "unknown argument '$1' (write -- before the command)"
		else
			wrong "unknown argument '$1'"
		fi
	done
}

# line_table: print the rows of patches/lines; fails if one is wrong.
line_table() {
	[ -f "$top/patches/lines" ] || die "$top/patches/lines: no such file; it names the lines of kernels"
	awk '
		function wrong(text) { bad = 1; printf "%s:%d: error: %s\n", FILENAME, FNR, text >"/dev/stderr"; exit 1 }
		function states(list, n, i, word) {
			n = split(list, word, ",")
			for (i = 1; i <= n; i++)
				if (word[i] !~ /^(applies|builds|boots|(storms|benchmarked):[0-9]+[.][0-9]+(-[a-z0-9]+)?)$/ && list != "-")
					wrong("unknown state \047" word[i] "\047 in " list)
		}
		/^[ \t]*(#|$)/ { next }
		NF != 11 { wrong(NF " columns instead of 11") }
		$1 !~ /^[0-9]+[.][0-9]+$/ { wrong("\047" $1 "\047 is not a line of kernels, such as 6.12") }
		seen[$1]++ { wrong($1 " is there twice") }
		$2 != "maintained" && $2 != "ended" { wrong("\047" $2 "\047 is neither maintained nor ended") }
		!rows++ && $2 == "ended" { wrong("the first line, the default one, has ended") }
		$3 !~ /^(source:)?[a-z0-9][a-z0-9.+-]+$/ { wrong("\047" $3 "\047 is not a package") }
		$4 !~ /^[a-z-]+(,[a-z-]+)*$/ { wrong("\047" $4 "\047 is not a list of suites") }
		$5 != "-" && index($5, $1 ".") != 1 { wrong($5 " is not a release of " $1) }
		$6 !~ /^(-|[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9])$/ { wrong("\047" $6 "\047 is not a date") }
		$7 !~ /^(-|[0-9]+[.][0-9]+(-[a-z0-9]+)?)$/ { wrong("\047" $7 "\047 is not a version of the series") }
		$8 !~ /^(-|[0-9a-f]+)$/ { wrong("\047" $8 "\047 is not a commit") }
		$9 !~ /^(-|[0-9a-f]+)$/ { wrong("\047" $9 "\047 is not a commit") }
		{ states($10); states($11); $1 = $1; print }
		END { if (!rows && !bad) wrong("names no line") }' "$top/patches/lines"
}

# line_names: print the names of the lines.
line_names() { line_table | cut -d ' ' -f 1; }

# use_line [LINE]: select LINE, or else the one in STEAL_LINE, or else the default line, which is the first in
# patches/lines. The scripts that this one runs have the same line.
# shellcheck disable=SC2034  # used by the scripts that source this file
use_line() {
	local table state
	table=$(line_table) || exit 1
	line=${1:-${STEAL_LINE:-${table%% *}}}
	read -r line_default _ <<<"$table"
	read -r state line_package line_suites < <(awk -v line="$line" '$1 "" == line { print $2, $3, $4 }' <<<"$table") ||
		refuse "no patches for a line of kernels '$line'; there are: $(line_names | paste -sd ' ')"
	line_patches=$top/patches/$line
	[ "$state" = maintained ] || line_patches=$top/patches/ended/$line
	line_series=$line_patches/series line_base=$line_patches/base
	if [ "$line" = "$line_default" ]; then
		line_patches=$top/patches line_series=$top/series line_base=$top/base
	fi
	export STEAL_LINE=$line
}

# selected [LINE]: whether a line is selected: by a script's option, or by STEAL_LINE.
selected() { [ -n "${1:-}${STEAL_LINE:-}" ]; }

# pinned KEY: print the value of KEY in the line's base file; nothing if there is none.
pinned() { [ ! -f "$line_base" ] || sed -n "s|^$1=||p" "$line_base"; }

# tested_commit PATH...: print the commit that the tests run on, for patches/lines. Refuses changes in PATH that are not in git.
tested_commit() {
	local commit changed
	commit=$(git -C "$top" rev-parse --short=12 HEAD) || die "--write: $top is not in git"
	changed=$(git -C "$top" status --porcelain -- "$@" ':!patches/lines') || die "--write: git status failed in $top (see above)"
	[ -z "$changed" ] || refuse "--write: $top has changes that are not in git; commit or move away: $(sed -n '1,3s/^...//p' <<<"$changed" | paste -sd ' ')"
	echo "$commit"
}

# still_commit COMMIT PATH...: refuse to write that COMMIT passed if the tests ended on something else.
still_commit() {
	local now
	now=$(tested_commit "${@:2}") || exit
	[ "$now" = "$1" ] || refuse "--write: the tests began on commit $1, and $top has $now now; run them again"
}

# need COMMAND...: fail with the way out unless every COMMAND is installed.
need() {
	local c missing=
	for c; do command -v "$c" >/dev/null || missing="$missing $c"; done
	[ -z "$missing" ] || die "not installed:$missing; run scripts/setup"
}

# find_splats LOG [PATTERN]: print the lines of this kernel log, each with its number, that are splats by the rules in
# scripts/splats; not those that match this extended regular expression.
find_splats() {
	local splat allow
	splat=$(sed -n 's/^splat //p' "$top/scripts/splats")
	allow=$(sed -n 's/^allow //p' "$top/scripts/splats")
	[[ $splat && $allow ]] || die "$top/scripts/splats: no rules found"
	{ grep -a -n -E -e "$splat" "$1" || [ $? = 1 ]; } | { grep -a -v -E -e "$allow${2:+$'\n'$2}" || [ $? = 1 ]; }
}

# apt_archive EXPRESSION: the first archive in this machine's apt sources that has a release with such a name; nothing if
# there is none.
apt_archive() {
	local uri release
	# shellcheck disable=SC2016  # apt's own fields
	while read -r uri release; do
		if [[ $uri != cdrom:* && $release =~ ^($1)$ ]]; then
			printf '%s\n' "$uri"
			return
		fi
	done < <(apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages')
}

# debian_mirror: the Debian archive that this machine's apt uses, or the one in STEAL_MIRROR.
debian_mirror() {
	local uri=${STEAL_MIRROR:-}
	[ -n "$uri" ] || uri=$(apt_archive 'bookworm|trixie|forky|sid|oldstable|stable|testing|unstable')
	[ -n "$uri" ] || die "no Debian archive in this machine's apt sources; name one: STEAL_MIRROR=URI $0"
	printf '%s\n' "$uri"
}

# debian_release: the name of the Debian release that this machine runs, such as trixie; nothing if the system does not say it.
# shellcheck source=/dev/null
debian_release() { (. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}"); }

# fetch_packages ARCH PACKAGES DIRECTORY: fetch PACKAGES (with commas) of the Debian release that this machine runs, for Debian's
# architecture ARCH, and the packages that they need; unpack all to the file packages.tar in DIRECTORY, where "log" is mmdebstrap's. The
# packages' scripts do not run: this needs no root, user namespace or emulator, and changes nothing outside of DIRECTORY, although mmdebstrap
# of Debian 13 would refuse it to root. The caller's file descriptor 9, a lock, stays its own.
fetch_packages() {
	local suite mirror
	suite=$(debian_release)
	[ -n "$suite" ] || die '/etc/os-release: no VERSION_CODENAME; this script needs a Debian release'
	mirror=$(debian_mirror) || exit 1
	say "fetching $1 packages of $suite: $2"
	mmdebstrap --quiet --mode=chrootless --skip=check/chrootless --variant=extract --architectures="$1" --include="$2" \
		"$suite" "$3/packages.tar" "$mirror" >"$3/log" 2>&1 9>&- || {
		tail -n 20 "$3/log" >&2
		die "mmdebstrap failed with $mirror (see above); to use another mirror: STEAL_MIRROR=URI $0"
	}
}
