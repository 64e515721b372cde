# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Sourced after lib.sh by the scripts that handle kernel trees: get-kernel, apply, regen, worktree, build and watch.

# A git hook that runs a script sets variables that name the hook's repository; the kernel's is another one.
# shellcheck disable=SC2046  # a list of names
unset $(git rev-parse --local-env-vars 2>/dev/null)

# git_plain ARG...: git without the user's configuration, hooks, ignore and attribute files. The same input
# gives the same objects and patches on every machine.
git_plain() {
	GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_ATTR_NOSYSTEM=1 LC_ALL=C \
		git -c core.hooksPath=/dev/null -c core.attributesFile=/dev/null \
		-c core.excludesFile=/dev/null -c core.autocrlf=false -c core.quotePath=true \
		-c core.fsmonitor=false -c gc.auto=0 "$@"
}

# format_patches TREE ARG...: git format-patch in the form that this repository keeps. The options override
# the tree's own configuration.
format_patches() {
	local tree=$1
	shift
	# quilt does not know renames
	git_plain -C "$tree" format-patch -q --zero-commit --no-signature --full-index \
		--no-renames --unified=3 --diff-algorithm=myers --stat=72 --src-prefix=a/ \
		--dst-prefix=b/ --no-ext-diff --no-textconv --no-notes --no-thread --no-to --no-cc \
		--no-from --no-signoff --subject-prefix=PATCH --suffix=.patch \
		--filename-max-length=64 "$@"
}

# kernel_version DIR: print what `make kernelversion` prints; nothing if DIR is not a kernel tree.
kernel_version() {
	[ -f "$1/Makefile" ] || return 0
	awk '/^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION)[ \t]*=/ {
			key = $0; sub(/[ \t]*=.*/, "", key)
			if (!(key in v)) { sub(/^[^=]*=[ \t]*/, ""); sub(/[ \t]+$/, ""); v[key] = $0 }
		}
		END {
			if (v["VERSION"] == "" || v["PATCHLEVEL"] == "")
				exit
			if (v["SUBLEVEL"] == "")
				v["SUBLEVEL"] = 0
			print v["VERSION"] "." v["PATCHLEVEL"] "." v["SUBLEVEL"] v["EXTRAVERSION"]
		}' "$1/Makefile"
}

# line_of VERSION: print the line of kernels that VERSION is of; nothing if there are no patches for it, or if VERSION is
# not safe as part of a file name.
line_of() {
	local names
	names=$(line_names) || exit 1
	[[ $1 =~ ^([0-9]+\.[0-9]+)\.[0-9]+[-+.~A-Za-z0-9]*$ ]] || return 0
	grep -Fx "${BASH_REMATCH[1]}" <<<"$names" || true
}

# check_version DIR [SOURCE]: set $version to that of the kernel tree in DIR, which comes from SOURCE. Fails if it is not of
# the selected line. If no line is selected, selects that of the tree.
# shellcheck disable=SC2154  # $line is lib.sh's
check_version() {
	local source=${2:-$1} of
	version=$(kernel_version "$1")
	[ -n "$version" ] || refuse "$source: wrong base: not a kernel source tree (no version in its Makefile)"
	of=$(line_of "$version")
	[ -n "$of" ] || refuse "$source: wrong base: Linux $version; there are patches for: $(line_names | paste -sd ' ')"
	if ! selected; then
		use_line "$of"
		say "$source: Linux $version: using the patches for $line"
	fi
	[ "$of" = "$line" ] || refuse "$source: wrong base: Linux $version; the line $line of kernels is selected"
}

# default_tree: print the path of the selected line's tree in the cache: that of the pinned version or else of the
# newest. Prints nothing if there is none.
# shellcheck disable=SC2154  # $cache is lib.sh's
default_tree() {
	local tree
	tree=$cache/linux-$(pinned version)
	if [ -d "$tree" ]; then
		printf '%s\n' "$tree"
	elif [ -d "$cache" ]; then
		# scripts/worktree's trees have no directory .git
		find "$cache" -maxdepth 1 -type d -name "linux-$line.*" ! -name '*-tree-*' -exec test -d '{}/.git' ';' -print |
			sort -V | tail -n 1
	fi
}

# names_in SERIES: print the names of the patches in a series file.
names_in() { sed 's/[ \t]*#.*//; /^[ \t]*$/d' "$1"; }

# made_by PATCH...: print the names of the files that these patches make.
made_by() { awk '/^diff --git / { file = substr($4, 3) } /^new file mode / { print file }' "$@"; }

# The first line of series that begins with this ends the mechanism. The patches below it are the follow-ups.
# shellcheck disable=SC2034  # used by the scripts that source this file
follow_ups='# Follow-ups'

# lock_tree TREE: wait until no other script works in TREE. The lock is on the directory itself, so that it
# leaves no file. It ends with the script.
lock_tree() {
	need flock
	exec 9<"$1"
	flock -n 9 || { say "waiting for another run in $1"; flock 9; }
}

# need_clean TREE: fail unless TREE, a git tree, holds exactly what HEAD holds.
need_clean() {
	local status dir
	dir=$(git -C "$1" rev-parse --absolute-git-dir) ||
		die "$1: git cannot use this tree (see above)"
	if [ -e "$dir/rebase-apply" ] || [ -e "$dir/rebase-merge" ]; then
		die "$1: a git am or rebase is under way; finish it, or: git -C $1 am --abort"
	fi
	# quilt leaves files modified; say how to undo that
	[ ! -s "$1/.pc/applied-patches" ] ||
		die "$1: quilt has applied patches; remove them: (cd $1 && quilt pop -a)"
	status=$(git --no-optional-locks -C "$1" status --porcelain --untracked-files=normal) ||
		die "$1: git status failed (see above)"
	[ -z "$status" ] || die "$1: not clean: $(head -n 3 <<<"$status" | paste -sd ';')" \
		"(git -C $1 status); commit or stash that first"
}
