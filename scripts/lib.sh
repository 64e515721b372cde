# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Sourced by the bash scripts of this repository: messages, the cache directory and the base file.
#
# Messages go to stderr; stdout carries only a script's result (a path, a table), so that
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

# usage: print the comment block at the head of the calling script, without its '#'.
usage() { sed -n '/^# Usage:/,/^[^#]*$/s/^# \{0,1\}//p' "$0"; }

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
