#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# usage: steps.sh [STEPS [VERSION...]]
#        steps.sh STEPS runtimes [PROGRAM...]
#
# Steps the corpus (tests/truth/programs/build) natively, in the prepared root: STEPS instructions
# in total (default 10,000,000), divided equally among the programs of each VERSION (default: all
# that were built). The report is printed, and left in build/truth/steps/VERSION.json; the last line
# is for all versions: `steps: N instructions, D unexplained differences`. The exit status is 0 only
# if D is 0, and if explained differences are at most a thousandth of the steps and come from at
# most 20 limits. SEED selects other windows, SECONDS_EACH limits the time of one program. Stacks
# with unexplained differences are saved as snapshots ("Snapshots" in Documentation/testing.rst) in
# build/truth/steps/saved.
#
# `runtimes` steps STEPS instructions of each program of tests/truth/start-runtime, which make code
# at run time or are hard to walk. This takes hours, and may be interrupted: build/truth/runtimes
# keeps the result of each program, and a program is stepped again only if what its result depends
# on has changed: the sources of `steps` and of what it uses, the program, STEPS, or SEED. Stacks
# with unexplained differences are saved in build/truth/runtimes/saved/PROGRAM. The end is a table
# of all named programs. The exit status is 0 only if each program was stepped to its end, without
# an unexplained difference, and if the module is worse than the kernel's own walk in at most a
# hundredth of the steps.

. "$(dirname "$0")/../../scripts/lib.sh"

total=${1:-10000000}
[[ $total =~ ^[1-9][0-9]*$ ]] ||
	die "STEPS is a number of instructions, not $total; see the head of this file"
[[ ${SEED:-1} =~ ^[0-9]+$ ]] || die "SEED is a number, not $SEED"
shift || true

# build_stepper - builds `steps`.
build_stepper() {
	in_root env CARGO_TARGET_DIR=/var/cache/sframe_unwind/target \
		cargo build -q --release --locked --manifest-path /src/Cargo.toml -p truth \
			--bin steps
}

# What the results of programs of start-runtime depend on, beside the programs' own part of that
# file.
sources=(Cargo.toml Cargo.lock rust/sframe tools/convert tools/runtimes tools/walk
	tests/truth/Cargo.toml tests/truth/src tests/programs/runtimes
	tests/truth/programs/debian/jit.js scripts/prepare-root scripts/prepare-programs)

# runtimes [PROGRAM...] - steps the programs of start-runtime.
runtimes() {
	local here=$SRC/tests/truth out=$SRC/build/truth/runtimes in=/src/build/truth/runtimes
	local all name names key of options status
	all=$("$here/start-runtime" --list)
	[ $# != 0 ] || mapfile -t names <<<"$all"
	[ $# = 0 ] || names=("$@")
	for name in "${names[@]}"; do
		grep -qxF -- "$name" <<<"$all" ||
			die "start-runtime has no program $name; it has:" $all
	done
	of=$(git -C "$SRC" rev-parse --short HEAD) || of=unknown
	[ -z "$(git -C "$SRC" status --porcelain -- "${sources[@]}")" ] || of="$of-changed"
	key=$(cd "$SRC" && find "${sources[@]}" -type f ! -name '*.pyc' -print0 | sort -z |
		xargs -0 sha256sum | key_of)
	options=(--convert --kernel 10000 --window 5000 --pause 300000 --steps "$total")
	options+=(--seed "${SEED:-1}")
	mkdir -p "$out"
	exec 9>"$out/lock"
	flock -n 9 || die "another steps.sh of this checkout steps the runtimes"
	{
		printf 'commit %s\nsteps %s\nseed %s\n' "$of" "$total" "${SEED:-1}"
		for name in "${names[@]}"; do
			printf 'program %s ' "$name"
			{ echo "$key ${options[*]}"; "$here/start-runtime" --show "$name"; } |
				key_of
		done
	} >"$out/wanted"
	"$SRC/scripts/prepare-programs" >/dev/null
	"$SRC/scripts/prepare-programs" keepers >/dev/null
	"$SRC/scripts/prepare-programs" wheels >/dev/null
	build_stepper
	for name in $(in_root /src/tests/truth/runtimes.py unfinished $in); do
		say "$name: $total instructions"
		rm -f "$out/$name.json" "$out/$name.key"
		status=0
		in_root /src/tests/truth/start-runtime "$name" \
			/var/cache/sframe_unwind/target/release/steps "${options[@]}" \
			--seconds "${SECONDS_EACH:-7200}" --json "$in/$name.json" \
			--save "$in/saved/$name" \
			>"$out/$name.log" 2>&1 9>&- || status=$?
		grep -v '^ ' "$out/$name.log" | grep -E '^ *[0-9]+ |^steps: ' || true
		in_root /src/tests/truth/runtimes.py keep $in "$name" $status ||
			tail -n 20 "$out/$name.log"
	done
	in_root /src/tests/truth/runtimes.py table $in | tee "$out/table"
}

if [ "${1-}" = runtimes ]; then
	shift
	runtimes "$@"
	exit
fi

out=$SRC/build/truth/steps
if [ $# = 0 ]; then
	for table in "$SRC"/build/truth/*/programs; do
		[ ! -e "$table" ] || set -- "$@" "$(basename "$(dirname "$table")")"
	done
fi
[ $# != 0 ] || die "there is no corpus yet; run: tests/truth/programs/build"
count=$(for version; do cat "$SRC/build/truth/$version/programs"; done | wc -l)
each=$(((total + count - 1) / count))

build_stepper
rm -rf "$out"
mkdir -p "$out"
measured "$out"
echo "${SEED:-1}" >"$out/seed"
failed=0
for version; do
	say "$version: $each instructions of each program"
	options=()
	# Debian's programs have no SFrame sections.
	[ "$version" != debian ] || options=(--convert --pause 300000)
	in_root /var/cache/sframe_unwind/target/release/steps "${options[@]}" --steps "$each" \
		--seed "${SEED:-1}" --seconds "${SECONDS_EACH:-120}" \
		--table "/src/build/truth/$version/programs" \
		--json "/src/build/truth/steps/$version.json" \
		--save /src/build/truth/steps/saved |
		tee "$out/$version.log" | grep -vE '^(steps|explained): ' || true
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
