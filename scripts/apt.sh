# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Sourced after lib.sh by the scripts that look for kernels in Debian's archive: get-kernel and package.

# gone MESSAGE...: end because of the archive.
gone() { say "error: $*"; exit 3; }

# apt_sources TYPE SUITE...: print apt's sources for these suites of Debian: packages for the type deb, source packages for
# deb-src. Leaves out security updates if neither STEAL_SECURITY_MIRROR nor
# the system's apt names an archive of them.
apt_sources() {
	local type=$1 keyring uri security suite
	shift
	for keyring in /usr/share/keyrings/debian-archive-keyring.{pgp,gpg} ''; do
		[ ! -f "$keyring" ] || break
	done
	[ -n "$keyring" ] || die "no Debian archive keyring; run scripts/setup"
	uri=$(debian_mirror) || exit 3
	security=${STEAL_SECURITY_MIRROR:-$(apt_archive '(bookworm|trixie|forky|oldstable|stable|testing)-security')}
	for suite; do
		case $suite in
		*-security)
			[ -n "$security" ] ||
				{ say "notice: no archive of security updates in this machine's apt sources: without $suite; name one: STEAL_SECURITY_MIRROR=URI $0"; continue; }
			printf '%s [signed-by=%s] %s %s main\n' "$type" "$keyring" "$security" "$suite"
			;;
		*) printf '%s [signed-by=%s] %s %s main\n' "$type" "$keyring" "$uri" "$suite" ;;
		esac
	done
}

# apt_setup TYPE: make an apt state of our own below $work, with the indices of the line's suites. The system's apt.conf
# (proxies) and keyring are used, its hooks are not. $suites gets the suites.
# shellcheck disable=SC2154  # lib.sh and the script set the other variables
apt_setup() {
	need apt-get apt-cache
	mkdir -p "$work"/apt/{lists/partial,cache/archives/partial}
	: >"$work/apt/status"
	# shellcheck disable=SC2086  # a list
	apt_sources "$1" ${line_suites//,/ } >"$work/apt/sources.list"
	suites=$(cut -d ' ' -f 4 "$work/apt/sources.list" | paste -sd ' ')
	cat >"$work/apt/apt.conf" <<-END
		Dir::State "$work/apt";
		Dir::State::lists "$work/apt/lists";
		Dir::State::status "$work/apt/status";
		Dir::Cache "$work/apt/cache";
		Dir::Etc::sourcelist "$work/apt/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::Etc::preferences "/dev/null";
		Dir::Etc::preferencesparts "/dev/null";
		#clear APT::Update::Pre-Invoke;
		#clear APT::Update::Post-Invoke;
		#clear APT::Update::Post-Invoke-Success;
		#clear Acquire::IndexTargets::deb::Contents-deb;
		#clear Acquire::IndexTargets::deb::DEP-11;
		APT::Update::Error-Mode "any";
		APT::Get::AllowUnauthenticated "false";
		Acquire::AllowInsecureRepositories "false";
		Acquire::Languages "none";
		Acquire::Retries "3";
	END
	# apt's own unprivileged user cannot write below root's home
	[ "$(id -u)" != 0 ] || echo 'APT::Sandbox::User "root";' >>"$work/apt/apt.conf"
	say "looking for Linux $line in Debian ($suites)"
	apt-get -q -c "$work/apt/apt.conf" update >&2 ||
		gone "apt could not read the archive's indices (see above); to use another archive: STEAL_MIRROR=URI $0"
}

# apt_offers PACKAGE...: print the names and the versions of those of the line that Debian has, the newest last.
apt_offers() {
	apt-cache -c "$work/apt/apt.conf" madison "$@" | awk '{ print $1, $3 }' | { grep " ${line//./\\.}\." || true; } |
		sort -u -k 2,2V
}
