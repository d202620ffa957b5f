#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# usage: samples.sh [SAMPLES [VERSION[=NAME,NAME...]...]]
#
# Records the corpus (tests/truth/programs/build) in a guest for each VERSION, by tests/guest/truth,
# and judges all samples: SAMPLES (default 3,200) of each program NAME in each context. The report
# is printed, and left in build/truth/samples/log and json; recordings, which are large, are kept if
# KEEP is set. The last line and the exit status are those of `samples`: see
# Documentation/accuracy.rst. VM_TIMEOUT limits the time of each guest.

. "$(dirname "$0")/../../scripts/lib.sh"

samples=${1:-3200}
shift || true
if [ $# = 0 ]; then
	many=shapes-O0,shapes-O2,shapes-clang-O2,shapes-static-pie,stack-O2,signals,threads,jumps
	set -- "v2=$many,exceptions-O2,shapes-musl,threads-musl,bash,sqlite3,gzip,lua" \
		v3=shapes-O2,shapes-musl,bash,sqlite3 debian
fi
out=$SRC/build/truth/samples
rm -rf "$out"
mkdir -p "$out/recordings"
measured "$out"

in_root sh -euc '
	cc -O2 -o /src/build/truth/recorder /src/tests/truth/recorder.c
	CARGO_TARGET_DIR=/var/cache/sframe_unwind/target cargo build -q --release --locked \
		--manifest-path /src/Cargo.toml -p truth --bin samples'
make -s -C "$SRC" tools
failed=0
for wanted; do
	version=${wanted%%=*}
	names=${wanted#"$version"}
	names=${names#=}
	[ -e "$SRC/build/truth/$version/programs" ] ||
		die "there is no corpus of $version yet; run: tests/truth/programs/build $version"
	say "$version: recording ${names:-all programs}"
	# shellcheck disable=SC2086
	VM_TIMEOUT=${VM_TIMEOUT:-1500} VM_LOG=$out/$version.log.kernel \
		"$SRC/scripts/vm" --share "$out/recordings" -- \
		/src/tests/guest/truth "$samples" "$version" ${names//,/ } |
		tee "$out/$version.log" | grep -vE '^ok ' || true
	grep -q "^ok - the kernel's log is clean" "$out/$version.log" ||
		{
			failed=1
			say "$version: the guest ended before its end, or its kernel complained"
		}
	! grep -q '^not ok' "$out/$version.log" || failed=1
done

# This file is not a recording.
[ ! -e "$out/recordings/bpftrace" ] || mv "$out/recordings/bpftrace" "$out/"
say "judging"
status=0
in_root sh -c '
	exec /var/cache/sframe_unwind/target/release/samples --converted debian \
		--map /tmp/truth=/src/build/truth --at-least "$1" \
		--json /src/build/truth/samples/json /src/build/truth/samples/recordings/*' \
	samples $((samples - samples / 16)) >"$out/log" || status=$?
[ -n "${KEEP-}" ] || rm -rf "$out/recordings"
cat "$out/log"
[ "$status" = 0 ] && [ "$failed" = 0 ]
