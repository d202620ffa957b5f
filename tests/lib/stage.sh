# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Functions for stages that are programs (tests/lib/stages.py). A stage prints TAP lines to stdout,
# with details of a failure after `#`. Its name, kernel, architecture and minutes are in STAGE,
# STAGE_KERNEL, STAGE_ARCH and STAGE_MINUTES; in_root is for that architecture.

. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

use_architecture "$STAGE_ARCH"

# Files of this stage that outlive it.
results=${STAGE:?a stage is run by tests/run}
results=$SRC/build/results/${results//:/-}
mkdir -p "$results"

# check NAME COMMAND... - one test; its output is shown if it fails, and is in $results/check.log.
check() {
	local name=$1 log=$results/check.log
	shift
	if "$@" >"$log" 2>&1; then
		echo "ok - $name"
	else
		echo "not ok - $name"
		details "$log"
	fi
}

# details FILE [LINES] - the last lines of a file, as details of a failure.
details() { tail -n "${2:-40}" "$1" | sed 's/^/# /'; }

# guest KERNEL [OPTION...] SCRIPT... - runs scripts in a guest: see tests/lib/guest.py.
guest() {
	"$SRC/tests/lib/guest.py" --arch "$architecture" --minutes "$STAGE_MINUTES" --kernel "$@"
}

# Checks of a module that need no load: with the kernel's own `kernel` crate, and with the shim.
modules_are_safe() { # KERNEL
	module_is_safe "$1"
	RUST=own module_is_safe "$1"
}
module_is_safe() { # KERNEL, and RUST
	local build=$1${RUST:+-$RUST}
	# First, as a build that has to make this too says so, which is no warning.
	in_root sh -c '/src/scripts/prepare-kernel "$(cat /boot/release)"' >/dev/null
	check "$build: the module builds without a warning" bash -c \
		"warnings=\$('$SRC/scripts/build-module' --arch $architecture $1 2>&1)
		echo \"\$warnings\"; test -z \"\$warnings\""
	object_is_safe "$build"
}
object_is_safe() { # BUILD
	local log=$results/object.log status=0
	in_root /src/scripts/check-object "/src/build/$1" >"$log" || status=$?
	sed -E "s/^((not )?ok - )/\1$1: /" "$log"
	if [ "$status" != 0 ] && ! grep -q "^not ok" "$log"; then
		echo "not ok - $1: check-object ended with status $status"
	fi
}
