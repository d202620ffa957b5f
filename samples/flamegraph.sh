#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# usage: flamegraph.sh PROGRAM [ARGUMENT]...
#        flamegraph.sh --data PERF-DATA SVG TITLE
#
# Samples the stacks of a program with perf, and draws them as a flame graph in
# the current directory. The width of a frame is its share of all samples; the
# frame below it is its caller. With the sframe_unwind module loaded, the file is
# PROGRAM-sframe.svg, otherwise PROGRAM-frame-pointers.svg. For both files of one
# program, switch the module off in between:
#
#     flamegraph.sh PROGRAM
#     echo 0 >/sys/module/sframe_unwind/parameters/enabled
#     flamegraph.sh PROGRAM
#     echo 1 >/sys/module/sframe_unwind/parameters/enabled
#
# With --data, the flame graph is drawn from an existing recording.
set -eu

usage() {
	echo "usage: $0 PROGRAM [ARGUMENT]..." >&2
	echo "       $0 --data PERF-DATA SVG TITLE" >&2
	exit 2
}

for tool in inferno-collapse-perf inferno-flamegraph; do
	command -v "$tool" >/dev/null || {
		echo "$0: $tool is not in PATH; to install it: cargo install --locked inferno" >&2
		echo "$0: (cargo installs programs in ~/.cargo/bin)" >&2
		exit 1
	}
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case ${1-} in
--data)
	[ $# = 4 ] || usage
	data=$2 svg=$3 title=$4
	;;
'' | -*) usage ;;
*)
	data=$work/perf.data
	program=$(basename "$1")
	if [ "$(cat /sys/module/sframe_unwind/parameters/enabled 2>/dev/null)" = Y ]; then
		svg=$program-sframe.svg title="$program: stacks by SFrame"
	else
		svg=$program-frame-pointers.svg title="$program: stacks by frame pointers"
	fi
	# A program that fails has stacks, too.
	perf record -q -F 999 --call-graph fp -o "$data" -- "$@" ||
		echo "$0: perf record ended with status $?" >&2
	;;
esac

# The kernel's frames of a stack become one frame, "kernel": they differ from machine to machine,
# their names may be hidden, and the module does not walk them. They come first, and their addresses
# have 16 digits. An address ffff... after a user frame is a false user frame, and stays.
perf script -i "$data" --no-inline -F comm,pid,tid,time,event,ip,sym,dso >"$work/script"
awk '
	BEGIN { ended = 1 }
	# An empty line ends a sample, and the first line of the next sample is no frame.
	!NF { ended = 1; print; next }
	ended { ended = kernel = user = 0; print; next }
	!user && length($1) == 16 && $1 ~ /^ffff[0-9a-f]+$/ {
		if (!kernel++)
			print "\tffffffffffffffff kernel ([kernel.kallsyms])"
		next
	}
	{ user = 1; print }' "$work/script" >"$work/stacks"

# Equal stacks give equal pictures: colours depend on the names alone. Frames of less than 0.5 % of
# the samples would be narrower than four pixels.
inferno-collapse-perf -q "$work/stacks" >"$work/folded"
inferno-flamegraph -q --deterministic --width 800 --minwidth 0.5 --fontsize 11 --fontwidth 0.63 \
	--bgcolors '#ffffff' --title "$title" "$work/folded" >"$work/svg"
cp "$work/svg" "$svg"
echo "$svg"
