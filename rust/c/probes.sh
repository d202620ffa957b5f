#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# usage: probes.sh KERNEL DEPENDENCIES PROBES COMPILER FLAG...
#
# Prints the header with the answers to the questions of the C file PROBES: see there. The compiler
# writes the names of the used headers to the file DEPENDENCIES. KERNEL is a comment. Exit status: 1
# if the kernel lacks what the module needs; the compiler has then printed what.

set -eu
kernel=$1 dependencies=$2 probes=$3
shift 3

# Warnings are no answer, however the kernel is configured.
compile() {
	LC_ALL=C "$@" -DMODULE -fsyntax-only -Wno-error -Werror=implicit-function-declaration \
		-Werror=incompatible-pointer-types -Werror=int-conversion "$probes"
}
answer() {
	name=$1
	shift
	if compile "$@" "-D$name" 2>/dev/null; then
		echo "#define $name 1"
	else
		echo "#define $name 0"
	fi
}

compile "$@" "-Wp,-MMD,$dependencies"
answers=$(
	for name in $(sed -n 's/^#ifdef \(SFU_HAS_[A-Z_]*\)$/\1/p' "$probes"); do
		answer "$name" "$@" &
	done
	wait
)
case $answers in
*'SFU_HAS_NOTHING 0'*) ;;
*)
	echo "$probes: this compiler compiles even what does not exist" >&2
	exit 1
	;;
esac
printf '/* Made by rust/c/probes.sh for Linux %s */\n' "$kernel"
printf '%s\n' "$answers" | sort
