# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Sourced by the bash scripts of this repository: messages, options, the cache directory and the base file.
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

say() { printf '%s: %s\n' "$prog" "$*" >&2; }
die() { say "error: $*"; exit 1; }
# wrong MESSAGE...: end with a usage error.
wrong() { say "error: $*; see --help"; exit 2; }

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

# base_get KEY: the value of KEY in the base file; fails if there is none.
base_get() {
	local value
	value=$(sed -n "s|^$1=||p" "$top/base" 2>/dev/null) || true
	[ -n "$value" ] || die "$top/base: no value for '$1'; the file is made by scripts/regen"
	printf '%s\n' "$value"
}

# need COMMAND...: fail with the way out unless every COMMAND is installed.
need() {
	local c missing=
	for c; do command -v "$c" >/dev/null || missing="$missing $c"; done
	[ -z "$missing" ] || die "not installed:$missing; run scripts/setup"
}

# debian_mirror: the Debian archive that this machine's apt uses, or the one in STEAL_MIRROR.
debian_mirror() {
	local uri release
	if [ -n "${STEAL_MIRROR:-}" ]; then
		printf '%s\n' "$STEAL_MIRROR"
		return
	fi
	# shellcheck disable=SC2016  # apt's own fields
	while read -r uri release; do
		case $uri in cdrom:*) continue ;; esac
		case $release in
		bookworm | trixie | forky | sid | oldstable | stable | testing | unstable)
			printf '%s\n' "$uri"
			return
			;;
		esac
	done < <(apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages')
	die "no Debian archive in this machine's apt sources; name one: STEAL_MIRROR=URI $0"
}
