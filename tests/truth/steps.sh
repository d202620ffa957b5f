#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# usage: steps.sh [STEPS [VERSION...]]
#
# Steps the corpus (tests/truth/programs/build) natively, in the prepared root: STEPS instructions
# in total (default 10,000,000), divided equally among the programs of each VERSION (default: all that
# were built). The report is printed, and left in build/truth/steps/VERSION.json; the last line is for
# all versions: `steps: N instructions, D unexplained differences`. The exit status is 0 only if D is
# 0, and if explained differences are at most a thousandth of the steps and come from at most 20
# limits. SEED selects other windows, SECONDS_EACH limits the time of one program.

. "$(dirname "$0")/../../scripts/lib.sh"

total=${1:-10000000}
shift || true
out=$SRC/build/truth/steps
if [ $# = 0 ]; then
	for table in "$SRC"/build/truth/*/programs; do
		[ ! -e "$table" ] || set -- "$@" "$(basename "$(dirname "$table")")"
	done
fi
[ $# != 0 ] || die "there is no corpus yet; run: tests/truth/programs/build"
count=$(for version; do cat "$SRC/build/truth/$version/programs"; done | wc -l)
each=$(((total + count - 1) / count))

in_root env CARGO_TARGET_DIR=/var/cache/sframe_unwind/target \
	cargo build -q --release --locked --manifest-path /src/Cargo.toml -p truth --bin steps
rm -rf "$out"
mkdir -p "$out"
failed=0
for version; do
	say "$version: $each instructions of each program"
	options=()
	# Debian's programs have no SFrame sections.
	[ "$version" != debian ] || options=(--convert --pause 300000)
	in_root /var/cache/sframe_unwind/target/release/steps "${options[@]}" --steps "$each" --seed "${SEED:-1}" \
		--seconds "${SECONDS_EACH:-120}" --table "/src/build/truth/$version/programs" \
		--json "/src/build/truth/steps/$version.json" | tee "$out/$version.log" |
		grep -vE '^(steps|explained): ' || true
	grep -E '^(steps|explained): ' "$out/$version.log" >>"$out/totals" || true
	tail -n 1 "$out/$version.log" | grep -q '^steps: ' ||
		{ failed=1; say "$version: the stepper ended before its end"; }
done
awk '/^steps/ { steps += $2; different += $4 }
	/^explained/ { explained += $2; by[$4] += $2 }
	END { for (limit in by) { limits++; printf "explained: %d by %s\n", by[limit], limit }
	printf "steps: %d instructions, %d unexplained differences\n", steps, different
	exit different != 0 || steps == 0 || explained * 1000 > steps || limits > 20
	}' "$out/totals" && [ "$failed" = 0 ]
