# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# What the guest's test scripts share. They print TAP lines, `ok - NAME` and `not ok - NAME`, with
# what went wrong behind `#`. Recordings are left in /share for tests/lib/verdicts.py, which judges them
# at the host's speed.

# On a file system whose pages the module's worker brings in; the guest's root is not one.
PROGRAMS=/tmp/programs
export CHAIN_FILE=/dev/null
[ ! -e /src/build/programs ] || cp -r /src/build/programs /tmp/

# The debug kernel takes some five times as long for all that is not the program itself.
if [ -e /sys/kernel/debug/kunit ]; then DEBUG=1; else DEBUG=0; fi

# An interrupt in the very first moments of the debug kernel's own boot, before there is a current
# CPU, may end its lock debugging: such a guest shows nothing, and is booted once more.
if dmesg | grep 'Disabling lock debugging'; then exit 125; fi
dmesg -C

STATS=/sys/kernel/debug/sframe_unwind/stats
/src/tests/guest/fewer-symbols
export PERF_BUILDID_DIR=/tmp/buildid

# check NAME COMMAND... - one test; its output is shown if it fails, its time if it is long.
check() {
	local name=$1 started=$SECONDS
	shift
	if "$@" >/tmp/check.log 2>&1; then
		echo "ok - $name"
		[ $((SECONDS - started)) -lt 10 ] || echo "# $((SECONDS - started)) s"
	else
		echo "not ok - $name"
		tail -n 30 /tmp/check.log | sed 's/^/# /'
	fi
}

# record NAME VERDICT PERF-OPTIONS... -- PROGRAM [ARGUMENT...] SECONDS
# Leaves NAME.data and NAME.chain, a line that says by what VERDICT they are judged, how many samples there
# are in `samples`, and how many milliseconds the program takes to start in `started`.
record() {
	local name=$1 verdict=$2 options=() CHAIN_FILE=/share/$1.chain program enough=0 tries=3
	shift 2
	while [ "$1" != -- ]; do options+=("$1"); shift; done
	shift
	program=("$PROGRAMS/$1" "${@:2}")
	"$PROGRAMS/$1" 0 >/dev/null 2>&1 # read once, so that no recording is of reading it
	started=${EPOCHREALTIME/./}
	"$PROGRAMS/$1" 0 >/dev/null 2>&1
	started=$(((${EPOCHREALTIME/./} - started) / 1000))
	# By itself perf takes all registers for dwarf, and would take fewer if asked for one.
	[ "$verdict" = dwarf ] || options+=(--user-regs=r12)
	# A busy host leaves the guest little of a CPU. What start-up is of a recording counts, too: a sample
	# for each millisecond that it takes, and no more than a tenth of all.
	case $DEBUG$verdict in
	0complete | 0forked* | 0incomplete | 0frame-pointers) enough=$((started > 60 ? 10 * started : 600)) ;;
	0probed) enough=300 ;;
	0dwarf) enough=150 ;;
	0*) enough=40 ;;
	esac
	# What is there already is of the same program, in front of what is recorded.
	rm -f /tmp/before.chain
	[ ! -e "$CHAIN_FILE" ] || cp "$CHAIN_FILE" /tmp/before.chain
	while :; do
		# For the thread that would note BPF programs perf waits a second at the end.
		if ! perf record --no-bpf-event -o "/share/$name.data" "${options[@]}" "${program[@]}" \
			>/tmp/record.log 2>&1; then
			echo "not ok - $name: perf record"
			sed 's/^/# /' /tmp/record.log
			return
		fi
		samples=$(sed -nE 's/.*\(([0-9]+) samples\).*/\1/p' /tmp/record.log)
		[ "${samples:-0}" -lt $enough ] && [ $((--tries)) -gt 0 ] || break
		echo "# $name: ${samples:-0} samples; taking more"
		program[-1]=$((3 * program[-1]))
		rm "$CHAIN_FILE"
		[ ! -e /tmp/before.chain ] || cp /tmp/before.chain "$CHAIN_FILE"
	done
	echo "$name $verdict" >>/share/cases
}

# wait_for SECONDS COMMAND... - until it succeeds; false if it has not in that time.
wait_for() {
	local last=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $last ] || return
		sleep 0.2
	done
}

counter() { awk -v name="$1" '$1 == name { print $2 }' "$STATS"; }

# Until `sframectl watch`, which writes to /tmp/watch.log, has nothing left to do: what it says last is
# `idle`, which may be of before, and for a while nothing is converted.
watched() {
	local quiet=0
	sleep 1
	for _ in $(seq 600); do
		if tail -n 1 /tmp/watch.log | grep -q idle && ! pgrep -f 'convert --confined' >/dev/null; then
			[ $((++quiet)) -lt 4 ] || return 0
		else
			quiet=0
		fi
		sleep 0.2
	done
	tail /tmp/watch.log
	return 1
}

# What perl does for so many turns.
load='sub f { my $n = shift; $n < 2 ? $n : f($n - 1) + f($n - 2) } f(15) for 1 .. $ARGV[0]'

# Of stacks of perl on stdin, in a form of whole.py, leaves how many there are in `stacks`, how many reach
# what it begins with in `whole`, and when the last one that does not was taken in `last`.
perls_stacks() {
	/src/tests/guest/whole.py /usr/bin/perl /lib64/ld-linux-x86-64.so.2 >/tmp/whole || return
	read -r stacks whole last </tmp/whole
	echo "$whole of $stacks stacks are whole, the last that is not is $last ms after the first"
}

# attached FILE - until bpftrace has said there that it is.
attached() { wait_for 120 grep -qs attached "$1"; }

# listen PID - has bpftrace write the stacks of a process, as whole.py reads them, to /tmp/bpf.text, but not
# those of a shell that waits to become it; leaves its own PID in `tracer`.
listen() {
	bpftrace -e 'BEGIN { printf("attached\n"); } profile:hz:499 /pid == '"$1"' && comm != "busybox"/ {
		printf("one %llu.%09llu: profile\n%s\n", nsecs / 1000000000, nsecs % 1000000000, ustack(raw, 127)); }' \
		>/tmp/bpf.text 2>/tmp/bpf.log &
	tracer=$!
	attached /tmp/bpf.text
}

# A new guest's first recording has hundreds of samples of perf and the loader being read.
first_recording() {
	perf record -q -o /tmp/first.data -e cpu-clock -F 999 --call-graph fp -- "$PROGRAMS/pie" 1 >/dev/null 2>&1
}

# What no test may leave in the kernel's log; and the traces that come with it, or by themselves.
COMPLAINTS='BUG|WARNING|Oops|general protection|KASAN:|KFENCE:|inconsistent lock|suspicious RCU|scheduling while atomic|sleeping function|unable to handle|blocked for more|soft lockup|rcu.*(stall|detected)'
log_is_clean() {
	! dmesg | grep -E "$COMPLAINTS|Call Trace" || return
	! dmesg | grep -E 'kmemleak: [0-9]+ new' || nothing_leaked
}

# What kmemleak has only missed in one scan it finds in the next. The code of a module that is gone has no
# names, only addresses.
nothing_leaked() {
	for _ in 1 2; do echo scan >/sys/kernel/debug/kmemleak; sleep 6; done
	cat /sys/kernel/debug/kmemleak
	! grep -qE 'sframe|sfu_|0xffffffffc' /sys/kernel/debug/kmemleak
}
