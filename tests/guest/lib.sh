# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Functions for the guest's test scripts. Scripts print TAP lines, `ok - NAME` and `not ok - NAME`,
# with details of a failure after `#`. Recordings are left in /share; tests/lib/verdicts.py judges
# them on the host, which is faster.

# On a file system from which the module's worker reads pages; the guest's root is no such file
# system.
PROGRAMS=/tmp/programs
export CHAIN_FILE=/dev/null
[ ! -e /src/build/programs ] || cp -r /src/build/programs /tmp/

# The debug kernel needs about five times as long for everything but the program itself.
if [ -e /sys/kernel/debug/kunit ]; then DEBUG=1; else DEBUG=0; fi

# A fault in the kernel's own boot may end lock debugging: such a guest cannot find faults, and is
# booted again.
if dmesg | grep -q 'Disabling lock debugging'; then
	dmesg | grep -E 'BUG: |WARNING: |Disabling lock debugging'
	exit 125
fi
dmesg -C

# Older kernels have no deferred stacks: perf then takes immediate stacks, without a message.
if grep -q " unwind_deferred_request\$" /proc/kallsyms; then DEFERRED=1; else DEFERRED=0; fi
no_deferred="SKIP this kernel has no deferred stacks"

# is_before MAJOR.MINOR - whether this kernel is of an older series.
is_before() { ! printf '%s\n' "$1" "$(uname -r)" | sort -CV; }

STATS=/sys/kernel/debug/sframe_unwind/stats
/src/tests/guest/fewer-symbols
export PERF_BUILDID_DIR=/tmp/buildid

# at_end COMMAND... - runs the command when the script ends, to undo what outlives it.
ends=()
at_end() { ends=("$(printf '%q ' "$@")" "${ends[@]}"); }
trap 'for end in "${ends[@]}"; do eval "$end"; done' EXIT
# set_sysctl NAME VALUE - sets a parameter of the kernel until the script ends.
set_sysctl() {
	at_end sysctl -q "$1=$(sysctl -n "$1")"
	sysctl -q "$1=$2"
}

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

# check_deferred NAME COMMAND... - a check that needs deferred stacks.
check_deferred() { if [ $DEFERRED = 1 ]; then check "$@"; else echo "ok - $1 # $no_deferred"; fi; }

# The seconds for a recording, or for anything else that a test waits for. Only what never comes
# takes longer, on a busy host too.
patience=$((DEBUG ? 1200 : 300))

# until_samples [-k] SAMPLES FILE PERF-OPTION... - records until there are so many samples; then
# SIGTERM ends the program. See tests/programs/until.c.
until_samples() { /tmp/programs/until -s $patience "$@"; }

# samples_for VERDICT - how many samples are recorded: more than the verdict demands.
samples_for() {
	case $1 in
	complete | forked* | never-false) echo $((DEBUG ? 150 : 700)) ;;
	incomplete | frame-pointers) echo $((DEBUG ? 150 : 700)) ;;
	probed*) echo $((DEBUG ? 100 : 350)) ;;
	in-tree) echo 200 ;;
	dwarf) echo $((DEBUG ? 50 : 150)) ;;
	*) echo 60 ;;
	esac
}

# record [-n SAMPLES] NAME VERDICT PERF-OPTIONS... -- PROGRAM [ARGUMENT...]
# Records until there are SAMPLES, or as many as the VERDICT needs. Where it judges by the truth,
# only samples with a known truth count. Leaves NAME.data and NAME.chain, a line with the VERDICT to
# judge them by, and the number of all samples in `samples`.
record() {
	local name verdict enough options=() program known=-k
	samples=0 enough=
	if [ "$1" = -n ]; then enough=$2; shift 2; fi
	name=$1 verdict=$2
	: "${enough:=$(samples_for "$verdict")}"
	local CHAIN_FILE=/share/$name.chain
	shift 2
	while [ "$1" != -- ]; do options+=("$1"); shift; done
	shift
	if [ $DEFERRED = 0 ] && [[ " ${options[*]} " == *" fp,defer "* ]]; then
		echo "ok - $name # $no_deferred"
		return
	fi
	program=("$PROGRAMS/$1" "${@:2}")
	"$PROGRAMS/$1" 0 >/dev/null 2>&1 # read once, so that no recording is of reading it
	# By default perf records all registers for dwarf; naming one would record fewer.
	[ "$verdict" = dwarf ] || options+=(--user-regs=r12)
	case $verdict in ended | untold | in-tree) known= ;; esac
	# perf would wait a second at the end for its thread that records BPF programs.
	if ! until_samples ${known:+"$known"} "$enough" "/share/$name.data" --no-bpf-event \
		"${options[@]}" "${program[@]}" >/tmp/record.log 2>&1; then
		echo "not ok - $name: perf record"
		sed 's/^/# /' /tmp/record.log
		return
	fi
	samples=$(sed -nE 's/.*\(([0-9]+) samples\).*/\1/p' /tmp/record.log)
	echo "$name $verdict" >>/share/cases
}

# walks - the number of all walks; has_walked NUMBER FROM - whether it is FROM and NUMBER more.
# By the shell alone, as starting a process takes long here.
walks() {
	local name value all=0
	while read -r name value; do
		case $name in walks_*) all=$((all + value)) ;; esac
	done <"$STATS"
	echo $all
}
has_walked() { [ "$(walks)" -ge $(($2 + $1)) ]; }
# has_grown COUNTER NUMBER FROM - whether a counter of the module is larger than FROM by NUMBER.
has_grown() { [ "$(counter "$1")" -ge $(($3 + $2)) ]; }

# wait_for SECONDS COMMAND... - waits until the command succeeds; false after SECONDS.
wait_for() {
	local last=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $last ] || return
		sleep 0.2
	done
}

# unpacked SET - the newest directory of packages that scripts/prepare-programs has unpacked;
# nothing if there is none.
unpacked() {
	local place newest=
	for place in "/var/cache/sframe_unwind/$1-"????????????; do
		[ "$newest" -nt "$place" ] || newest=$place
	done
	[ ! -d "$newest" ] || echo "$newest"
}

counter() { awk -v name="$1" '$1 == name { print $2 }' "$STATS"; }

# Waits until `sframectl watch`, which writes to /tmp/watch.log, is idle: its last line is `idle`,
# which may be an older one, and no conversion has run for a while.
watched() {
	local quiet=0
	sleep 1
	wait_for $patience is_quiet || { tail /tmp/watch.log; return 1; }
}
# is_quiet - whether `watch` was idle at this call and at the three calls before.
is_quiet() {
	if tail -n 1 /tmp/watch.log | grep -q idle &&
		! pgrep -f '(convert|runtime [0-9]+) --confined' >/dev/null; then
		[ $((++quiet)) -ge 4 ]
	else
		quiet=0
		return 1
	fi
}

# The workload of perl, with a number of turns.
load='sub f { my $n = shift; $n < 2 ? $n : f($n - 1) + f($n - 2) } f(15) for 1 .. $ARGV[0]'

# stacks_of PROGRAM - reads its stacks from stdin, in a format of whole.py. Leaves their number in
# `stacks`, the number of complete ones, up to the entry point, in `whole`, and the milliseconds
# from the first incomplete one to the last one in `last`.
stacks_of() {
	/src/tests/guest/whole.py "$1" /lib64/ld-linux-x86-64.so.2 >/tmp/whole || return
	read -r stacks whole last </tmp/whole
	echo "$whole of $stacks stacks are complete," \
		"the last incomplete one is $last ms after the first such one"
}
perls_stacks() { stacks_of /usr/bin/perl; }

# recorded COMMAND... - records the user stacks of a command; stacks_recorded PROGRAM - judges them:
# see stacks_of.
recorded() {
	perf record -q -e cpu-clock:u -F 999 -BN --no-bpf-event -o /tmp/recorded.data \
		--call-graph fp "$@" >/tmp/record.log 2>&1 ||
		{ cat /tmp/record.log; return 1; }
}
# recorded_until SAMPLES COMMAND... - the same of a command that does not end by itself.
recorded_until() {
	until_samples "$1" /tmp/recorded.data -q -e cpu-clock:u -F 999 -BN --no-bpf-event \
		--call-graph fp "${@:2}" >/tmp/record.log 2>&1 || { cat /tmp/record.log; return 1; }
}
# sampled_until CONDITION COMMAND... - the same of a command that perf ends when the condition, a
# command, is true. Few samples may miss a file, or the process may end before the worker has seen
# the file. A sample may take a millisecond on the debug kernel. At 999 a second, the program would
# then not go on; and perf, which finds new samples each time that it looks, would not end.
sampled_until() {
	local recording status=0
	rm -f /tmp/recorded.data
	perf record -q -e cpu-clock:u -F $((DEBUG ? 99 : 999)) -BN --no-bpf-event \
		-o /tmp/recorded.data --call-graph fp "${@:2}" >/tmp/record.log 2>&1 &
	recording=$!
	wait_for $patience $1 || status=$?
	# Before perf opens its file, it ignores the signal.
	wait_for $patience test -e /tmp/recorded.data
	kill -INT $recording
	wait $recording
	return $status
}
stacks_recorded() {
	perf script -i /tmp/recorded.data --show-mmap-events -F comm,time,event,ip >/tmp/stacks \
		2>/dev/null
	stacks_of "$1" </tmp/stacks
}

# attached FILE - waits until bpftrace has reported in FILE that it is attached.
attached() { wait_for $patience grep -qs attached "$1"; }

# listen PID - runs bpftrace, which writes the stacks of a process, in whole.py's format, to
# /tmp/bpf.text, but not those of the shell before its exec; leaves bpftrace's PID in `tracer`.
listen() {
	bpftrace -e 'BEGIN { printf("attached\n"); }
		profile:hz:499 /pid == '"$1"' && comm != "busybox"/ {
			printf("one %llu.%09llu: profile\n%s\n",
				nsecs / 1000000000, nsecs % 1000000000, ustack(raw, 127));
		}' \
		>/tmp/bpf.text 2>/tmp/bpf.log &
	tracer=$!
	attached /tmp/bpf.text
}

# keep_faults PLACE - keeps what a place for injected faults is set to; restore_faults PLACE - sets
# it to that again.
keep_faults() {
	local file
	mkdir -p "/tmp/faults/$1"
	for file in /sys/kernel/debug/"$1"/*; do cat "$file" >"/tmp/faults/$1/${file##*/}"; done
}
restore_faults() {
	local file
	for file in /tmp/faults/"$1"/*; do cat "$file" >"/sys/kernel/debug/$1/${file##*/}"; done
}

# In a new guest, the first recording has hundreds of samples of reading perf and the loader from
# disk.
first_recording() {
	perf record -q -o /tmp/first.data -e cpu-clock -F 999 --call-graph fp -- "$PROGRAMS/pie" 1 \
		>/dev/null 2>&1
}

# Messages that no test may leave in the kernel's log, and traces, which come with them or alone.
COMPLAINTS='BUG|WARNING|Oops|general protection|KASAN:|KFENCE:|inconsistent lock|suspicious RCU'
COMPLAINTS+='|scheduling while atomic|sleeping function|unable to handle|blocked for more'
COMPLAINTS+='|soft lockup|rcu.*(stall|detected)'
# kernel_log - the log that log_is_clean checks. A script may define it anew.
kernel_log() { dmesg; }
# without_other_races - copies a kernel log from stdin to stdout, without the reports of KCSAN that
# do not name the module: the kernel has data races of its own. Their number goes to stderr.
without_other_races() { awk '
	/==========$/ && !block { block = $0; next }
	!block { print; next }
	{ block = block "\n" $0 }
	/==========$/ {
		if (block ~ /BUG: KCSAN/ && block !~ /sframe_unwind/) races++; else print block
		block = ""
	}
	END {
		if (block) print block
		if (races) print "# " races " data races of other code" >"/dev/stderr"
	}'
}
log_is_clean() {
	[ ! -e /sys/kernel/debug/kcsan ] || grep -x "enabled: 1" /sys/kernel/debug/kcsan ||
		{ echo "KCSAN is off"; return 1; }
	# As many lines as check() prints.
	kernel_log | without_other_races >/tmp/dmesg
	! grep -E -m 1 -A 29 "$COMPLAINTS|Call Trace" /tmp/dmesg || return
	! grep '^different [1-9]' "$STATS" 2>/dev/null ||
		{ echo "walks by kept rules differ from whole walks"; return 1; }
	! dmesg | grep -E 'kmemleak: [0-9]+ new' || nothing_leaked
}

# Objects that one scan of kmemleak reports by mistake are found in use by the next. The code of an
# unloaded module has no names, only addresses.
nothing_leaked() {
	for _ in 1 2; do echo scan >/sys/kernel/debug/kmemleak; sleep 6; done
	cat /sys/kernel/debug/kmemleak
	! grep -qE 'sframe|sfu_|0xffffffffc' /sys/kernel/debug/kmemleak
}
