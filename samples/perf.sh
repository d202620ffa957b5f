#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# perf.sh PROGRAM [ARGUMENT]... - sample a program's stacks with perf, twice.
#
# "fp" means "the stack that the kernel finds". The kernel itself finds it by
# frame pointers; with the sframe_unwind module loaded, by .sframe as well.
set -eu

[ $# -gt 0 ] || { echo "usage: $0 PROGRAM [ARGUMENT]..." >&2; exit 2; }
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
data=$directory/perf.data

# Without defer the stack is immediate: taken in the interrupt. With defer it is
# taken when the program is about to go on. Older kernels defer no stacks: there
# both recordings have immediate stacks.
for mode in fp fp,defer; do
	echo "== --call-graph $mode"
	perf record -q -F 99 -e cpu-clock --call-graph "$mode" -o "$data" -- "$@"
	perf report -i "$data" --stdio --no-children --no-inline -g caller --percent-limit 5 \
		2>/dev/null
done
