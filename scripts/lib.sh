# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Shared by the scripts: the places in the cache, the messages, and the call of a command in the
# prepared Debian root. Sourced, never run.
#
# Layout of the cache (outside the checkout, kept between runs):
#   root-SUITE-KEY/   a Debian root: build root, guest root, and the place QEMU runs from
#   root-SUITE-ARCH-KEY/   the root of guests of another architecture
#   kernel-NAME-KEY/   layers with other kernels of Debian's, see prepare-guest-kernel
#   cross-ARCH-KEY/   layers with QEMU and a compiler for another architecture
#   toolchain-SUITE-KEY/   roots with other compilers, assemblers and linkers
#   var/        seen as /var/cache/sframe_unwind inside the root: kernel trees, cargo's downloads
#   target-KEY/ seen as /var/cache/sframe_unwind/target: what cargo builds, of the checkout at one
#               path. cargo compares times of files, so checkouts with one directory would get each
#               other's programs.

set -euo pipefail

SRC=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE=${SFRAME_UNWIND_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sframe_unwind}

# Progress goes to stderr: stdout is for the requested output of a command.
say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { say "$*"; exit 1; }

# Runs a command silently; its output is shown only if it fails.
quietly() {
	local log status=0
	log=$(mktemp)
	"$@" >"$log" 2>&1 || status=$?
	if [ "$status" != 0 ]; then
		tail -n 40 "$log" >&2
		say "failed ($status): $*"
	fi
	rm -f "$log"
	return "$status"
}

# need_packages NAME... - Debian packages that this host lacks: installs them, or names them.
need_packages() {
	local missing=() package
	for package in "$@"; do
		dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed' ||
			missing+=("$package")
	done
	[ "${#missing[@]}" = 0 ] && return
	[ "$(id -u)" = 0 ] || die "packages are missing; run: sudo apt-get install ${missing[*]}"
	say "installing on this host: ${missing[*]}"
	quietly apt-get -qq update
	DEBIAN_FRONTEND=noninteractive quietly \
		apt-get -qq install --no-install-recommends -y "${missing[@]}"
}

# The checksum that names a cache entry, of the files and words that it is made from.
key_of() { sha256sum | cut -c1-12; }

# lock NAME - waits until no other script holds this lock in the cache, and holds it until the
# script ends.
lock() {
	local descriptor
	mkdir -p "$CACHE"
	exec {descriptor}>"$CACHE/$1.lock"
	flock "$descriptor"
}

# is_own_kernel NAME - whether scripts/prepare-kernel builds this kernel of scripts/vm, by clang.
is_own_kernel() { case $1 in debug | kcsan | clang) ;; *) false ;; esac; }

# check_kernel NAME - ends the script if that kernel is not made for the architecture.
check_kernel() {
	! is_foreign || { [ "$1" != forky ] && ! is_own_kernel "$1"; } ||
		die "there is no kernel $1 for $architecture, only those that the command" \
			"prepare-guest-kernel --arch $architecture --list prints"
}

# in_root COMMAND... - runs a command as root inside the prepared root, in mount and process
# namespaces of its own, so that nothing stays mounted or running. The checkout is at /src; the
# directory SHARE, if set, at /share. KERNEL is the name of a kernel of scripts/vm: `forky` has a
# root of its own; those of prepare-guest-kernel have a layer that is laid over the prepared root,
# and then what is written outside of the checkout, SHARE and the cache is lost. ROOT is another
# root.
#
# For another architecture there is also a layer with its compiler and its QEMU; /src/build is that
# architecture's own; and with KERNEL, the root of its guests is at /run/foreign.
in_root() {
	local root=${ROOT-} layers= suite= guest= target
	local kernel=${KERNEL-}
	if is_foreign; then
		layers=$("$SRC/scripts/prepare-cross" "$architecture")
		if [ -n "$kernel" ]; then
			guest=$("$SRC/scripts/prepare-root" --arch "$architecture")
			kernel=$("$SRC/scripts/prepare-guest-kernel" \
				--arch "$architecture" "$kernel")
			layers=$kernel:$layers
		fi
	else
		case $kernel in
		'' | debian) ;;
		forky) suite=forky ;;
		*)
			is_own_kernel "$kernel" ||
				layers=$("$SRC/scripts/prepare-guest-kernel" "$kernel")
			;;
		esac
	fi
	# shellcheck disable=SC2086
	[ -n "$root" ] || root=$("$SRC/scripts/prepare-root" $suite)
	[ "$(id -u)" = 0 ] || die "root is needed to enter the prepared root; run: sudo make ..."
	target=$CACHE/target-$(key_of <<<"$SRC")
	mkdir -p "$CACHE/var/target" "$target"
	mkdir -p "$root/src" "$root/share" "$root/var/cache/sframe_unwind"
	! is_foreign || mkdir -p "$SRC/$built"
	unshare --mount --pid --fork --kill-child bash -euc '
		root=$1 src=$2 cache=$3 share=$4 layers=$5 target=$6 built=$7 guest=$8; shift 8
		if [ -n "$layers" ]; then
			mount -t tmpfs tmpfs "$root/tmp"
			mkdir "$root/tmp/upper" "$root/tmp/work"
			mount -t overlay overlay "$root" -o "lowerdir=$layers:$root" \
				-o "upperdir=$root/tmp/upper,workdir=$root/tmp/work"
		else
			mount --bind "$root" "$root"
		fi
		mount -t proc proc "$root/proc"
		mount --rbind /sys "$root/sys"
		mount --rbind /dev "$root/dev"
		mount -t tmpfs tmpfs "$root/tmp"
		mount -t tmpfs tmpfs "$root/run"
		mount --bind "$src" "$root/src"
		[ "$built" = build ] || mount --bind "$src/$built" "$root/src/build"
		if [ -n "$guest" ]; then
			mkdir "$root/run/foreign"
			mount --bind "$guest" "$root/run/foreign"
		fi
		mount --bind "$cache" "$root/var/cache/sframe_unwind"
		mount --bind "$target" "$root/var/cache/sframe_unwind/target"
		[ -z "$share" ] || mount --bind "$share" "$root/share"
		# The certificates that this host trusts: behind a proxy, more than in Debian.
		ca=/etc/ssl/certs/ca-certificates.crt
		if [ -e $ca ]; then cp $ca "$root/run/ca.crt"; else ca=; fi
		[ ! -e /etc/resolv.conf ] || cat /etc/resolv.conf >"$root/etc/resolv.conf"
		exec chroot "$root" /usr/bin/env -i \
			PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root \
			CARGO_HOME=/var/cache/sframe_unwind/cargo \
			${ca:+CARGO_HTTP_CAINFO=/run/ca.crt} \
			${ca:+PIP_CERT=/run/ca.crt NODE_EXTRA_CA_CERTS=/run/ca.crt} \
			${http_proxy:+http_proxy="$http_proxy"} \
			${https_proxy:+https_proxy="$https_proxy"} \
			"$@"
	' in_root "$root" "$SRC" "$CACHE/var" "${SHARE-}" "$layers" "$target" "$built" "$guest" "$@"
}

# in_plain_root COMMAND... - in_root without a layer, for the scripts that make layers.
in_plain_root() {
	local architecture=$root_architecture built=build
	KERNEL= in_root "$@"
}

# commit - the commit of the checkout; with `-changed` if files are different, but for documents.
commit() {
	local commit
	commit=$(git -C "$SRC" rev-parse --short HEAD) || commit=unknown
	git -C "$SRC" diff --quiet HEAD -- . ':!Documentation' ':!README.md' || commit+=-changed
	echo "$commit"
}

# measured DIRECTORY - notes there what a measurement is of, for scripts/results.py: the commit, and
# the release of the guest's kernel.
measured() {
	commit >"$1/commit"
	in_root cat /boot/release >"$1/release"
}

. "$SRC/scripts/architectures.sh"
use_architecture "$root_architecture"
