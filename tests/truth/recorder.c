// SPDX-License-Identifier: GPL-2.0-only
/*
 * usage: recorder [-d] [-n SAMPLES] [-t SECONDS] [-N NAME] [-F HERTZ] [-s BYTES] [-b MEGABYTES]
 *                 -o FILE -- PROGRAM [ARGUMENT...]
 *
 * Runs PROGRAM and records, at each tick of its CPU clock, the user stack that the kernel reports,
 * all user registers, and as much of the user stack's memory as fits into a record.
 * tests/truth/src/bin/samples judges the file, on any machine.
 *
 *   -d  deferred stacks (perf_event_attr::defer_callchain)
 *   -n  kills PROGRAM and its children after this many samples
 *   -t  kills them after this many seconds
 *   -N  the name of PROGRAM in reports
 *   -F  ticks for each second of CPU time (default 999)
 *   -s  bytes of stack to copy (default and maximum 65528)
 *   -b  megabytes of ring buffer for each CPU, a power of two (default 32)
 *
 * If the module is loaded, its tracepoint sframe_unwind:sframe_unwind_walk goes to the same ring
 * buffers: a walk in an interrupt then lies right before the sample that it was for.
 *
 * FILE: the magic, then records as in perf_event_open(2), in the order of each CPU's ring buffer.
 * In samples, the copy of the stack is truncated to the bytes that were copied. The recorder's own
 * records have types from 1000 on, see the enum below.
 *
 * Exit status: that of PROGRAM, 0 if the recorder killed it, or 125 if it could not be recorded.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAGIC "SFUTRUT1"

/* Records of our own. */
enum {
	RECORD_NOTE = 1000, /* text: lines of NAME=VALUE */
	RECORD_FORMAT = 1001, /* text: the tracepoint's format */
	RECORD_VDSO = 1002, /* the vDSO's pages */
	RECORD_TOTALS = 1003, /* text, the last: lines of NAME=VALUE */
};

/* All of asm/perf_regs.h that the kernel gives to a 64-bit program: AX to IP, and R8 to R15. */
#define REGISTERS (0x1ffull | 0xff0000ull)
#define CALL_CHAIN_LIMIT "/proc/sys/kernel/perf_event_max_stack"
#define TRACEPOINT "events/sframe_unwind/sframe_unwind_walk/"

struct ring {
	struct perf_event_mmap_page *page;
	unsigned char *data;
	uint64_t size;
};

static FILE *out;
static const char *out_name;
static uint64_t samples, records, lost;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("recorder: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	exit(125);
}

static void put(const void *bytes, size_t length)
{
	if (fwrite(bytes, 1, length, out) != length)
		fail("%s: cannot write: %s; is that file system full?", out_name,
		     strerror(errno));
}

/* Writes a record of our own, which is padded with zeros to a multiple of eight. */
static void put_record(uint32_t type, const void *bytes, size_t length)
{
	static const char zeros[8];
	size_t padding = -length & 7;
	struct perf_event_header header = { .type = type };

	if (length + padding + sizeof(header) > UINT16_MAX)
		fail("%zu bytes do not fit into a record of type %u", length, type);
	header.size = sizeof(header) + length + padding;
	put(&header, sizeof(header));
	put(bytes, length);
	put(zeros, padding);
}

/* The text of a file of tracefs or procfs; NULL if there is none. */
static char *text_of(const char *directory, const char *name)
{
	static char text[32768];
	char path[256];
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "%s%s", directory, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	length = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (length <= 0)
		return NULL;
	text[length] = 0;
	return text;
}

static const char *tracefs(void)
{
	static const char *const places[] = { "/sys/kernel/tracing/",
					      "/sys/kernel/debug/tracing/" };

	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		if (text_of(places[i], TRACEPOINT "id"))
			return places[i];
	}
	return NULL;
}

static void put_vdso(void)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	uintptr_t start, end;

	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "[vdso]") &&
		    sscanf(line, "%" SCNxPTR "-%" SCNxPTR, &start, &end) == 2)
			put_record(RECORD_VDSO, (const void *)start, end - start);
	}
	if (maps)
		fclose(maps);
}

static int open_event(struct perf_event_attr *attr, pid_t pid, int cpu)
{
	return syscall(SYS_perf_event_open, attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
}

static uint64_t id_of(int fd)
{
	uint64_t id;

	if (ioctl(fd, PERF_EVENT_IOC_ID, &id))
		fail("PERF_EVENT_IOC_ID: %s", strerror(errno));
	return id;
}

static struct ring map_ring(int fd, uint64_t size)
{
	long page = sysconf(_SC_PAGESIZE);
	struct ring ring = { .size = size };
	void *at = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		fail("a ring buffer of %" PRIu64 " MB: %s; try a smaller one (-b)", size >> 20,
		     strerror(errno));
	ring.page = at;
	ring.data = (unsigned char *)at + page;
	return ring;
}

/* A field of a record: the eight bytes at *at, which moves on. */
static uint64_t next(const unsigned char *record, size_t *at, size_t size)
{
	uint64_t value;

	if (*at + sizeof(value) > size)
		fail("a sample of %zu bytes ends early: this kernel lays samples out otherwise",
		     size);
	memcpy(&value, record + *at, sizeof(value));
	*at += sizeof(value);
	return value;
}

/*
 * Writes a sample of the clock. All but what was copied of the stack is dropped at its end, where
 * the record has space for the requested size.
 */
static void put_sample(unsigned char *record, size_t size)
{
	/* Identifier, IP, TID, time, CPU: see attr.sample_type. */
	size_t at = sizeof(struct perf_event_header) + 5 * 8, size_at;
	struct perf_event_header header;
	uint64_t capacity, copied, kept;

	at += 8 * next(record, &at, size); /* call chain */
	if (next(record, &at, size) != PERF_SAMPLE_REGS_ABI_NONE)
		at += 8 * __builtin_popcountll(REGISTERS);
	size_at = at;
	capacity = next(record, &at, size);
	if (!capacity) {
		put(record, size);
		return;
	}
	at += capacity;
	copied = next(record, &at, size);
	if (copied > capacity)
		fail("a sample's copy of the stack has %" PRIu64 " bytes in %" PRIu64, copied,
		     capacity);
	kept = (copied + 7) & ~7ull;

	memcpy(&header, record, sizeof(header));
	header.size -= capacity - kept;
	memcpy(record, &header, sizeof(header));
	memcpy(record + size_at, &kept, sizeof(kept));
	memcpy(record + size_at + 8 + kept, &copied, sizeof(copied));
	put(record, header.size);
}

static void put_any(unsigned char *record, bool is_tick)
{
	struct perf_event_header header;
	uint64_t number;

	memcpy(&header, record, sizeof(header));
	records++;
	switch (header.type) {
	case PERF_RECORD_SAMPLE:
		if (is_tick) {
			samples++;
			put_sample(record, header.size);
			return;
		}
		break;
	case PERF_RECORD_LOST:
		memcpy(&number, record + sizeof(header) + 8, sizeof(number));
		lost += number;
		break;
	}
	put(record, header.size);
}

struct ids {
	uint64_t *of;
	size_t count;
};

static bool has_id(const struct ids *ids, uint64_t id)
{
	for (size_t i = 0; i < ids->count; i++) {
		if (ids->of[i] == id)
			return true;
	}
	return false;
}

static void copy_from(const struct ring *ring, uint64_t from, void *to, size_t length)
{
	uint64_t at = from & (ring->size - 1);
	size_t first = length < ring->size - at ? length : ring->size - at;

	memcpy(to, ring->data + at, first);
	memcpy((char *)to + first, ring->data, length - first);
}

/* Writes all that is in a ring buffer; whether there was anything. */
static bool drain(struct ring *ring, const struct ids *clocks)
{
	static unsigned char record[UINT16_MAX + 1];
	uint64_t head = __atomic_load_n(&ring->page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = ring->page->data_tail;
	struct perf_event_header header;
	uint64_t id;

	if (head == tail)
		return false;
	while (tail != head) {
		copy_from(ring, tail, &header, sizeof(header));
		if (header.size < sizeof(header) || header.size > head - tail)
			fail("a ring buffer is spoilt");
		copy_from(ring, tail, record, header.size);
		tail += header.size;
		memcpy(&id, record + sizeof(header), sizeof(id));
		put_any(record, header.type == PERF_RECORD_SAMPLE && has_id(clocks, id));
		__atomic_store_n(&ring->page->data_tail, tail, __ATOMIC_RELEASE);
	}
	return true;
}

static uint64_t number(const char *text, const char *option)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 10);

	if (*end || end == text || !value)
		fail("%s takes a number, not \"%s\"", option, text);
	return value;
}

/* The child waits until the events are there; they begin with its exec. */
static pid_t start(char **command, int *go)
{
	int pipes[2];
	pid_t child;
	char byte;

	if (pipe2(pipes, O_CLOEXEC))
		fail("pipe: %s", strerror(errno));
	child = fork();
	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (!child) {
		/* A group, so that it can be ended with all that it starts. */
		setpgid(0, 0);
		close(pipes[1]);
		if (read(pipes[0], &byte, 1) != 1)
			_exit(125);
		execvp(command[0], command);
		fprintf(stderr, "recorder: %s: %s\n", command[0], strerror(errno));
		_exit(127);
	}
	close(pipes[0]);
	*go = pipes[1];
	return child;
}

int main(int argc, char **argv)
{
	struct perf_event_attr clock = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(clock),
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.freq = 1,
		.sample_freq = 999,
		/* The copy of the stack must be the last: it fills the rest of the record. */
		.sample_type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_IP | PERF_SAMPLE_TID |
			       PERF_SAMPLE_TIME | PERF_SAMPLE_CPU | PERF_SAMPLE_CALLCHAIN |
			       PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER,
		.sample_regs_user = REGISTERS,
		.sample_stack_user = 65528,
		.sample_id_all = 1,
		.disabled = 1,
		.enable_on_exec = 1,
		.inherit = 1,
		.exclude_callchain_kernel = 1,
		.exclude_hv = 1,
		.mmap = 1,
		.mmap2 = 1,
		.mmap_data = 1,
		.comm = 1,
		.comm_exec = 1,
		.task = 1,
		.watermark = 1,
	};
	struct perf_event_attr walk = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(walk),
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_IP | PERF_SAMPLE_TID |
			       PERF_SAMPLE_TIME | PERF_SAMPLE_CPU | PERF_SAMPLE_RAW,
		.sample_id_all = 1,
		.disabled = 1,
		.enable_on_exec = 1,
		.inherit = 1,
	};
	int cpus = sysconf(_SC_NPROCESSORS_CONF), rings_there = 0, go, status, option;
	uint64_t megabytes = 32, most_samples = UINT64_MAX, seconds = UINT32_MAX;
	const char *name = NULL;
	time_t end;
	struct ring *rings = calloc(cpus, sizeof(*rings));
	struct pollfd *polls = calloc(cpus, sizeof(*polls));
	struct ids clocks = { calloc(cpus, sizeof(uint64_t)), 0 };
	struct ids walks = { calloc(cpus, sizeof(uint64_t)), 0 };
	const char *events = tracefs(), *text;
	struct utsname system;
	char *note;
	size_t note_length;
	FILE *notes;
	pid_t child;
	bool ended = false;

	if (!rings || !polls || !clocks.of || !walks.of)
		fail("no memory");
	while ((option = getopt(argc, argv, "+dn:t:N:F:s:b:o:")) != -1) {
		switch (option) {
		case 'd':
			clock.defer_callchain = 1;
			clock.defer_output = 1;
			break;
		case 'n':
			most_samples = number(optarg, "-n");
			break;
		case 't':
			seconds = number(optarg, "-t");
			break;
		case 'N':
			name = optarg;
			break;
		case 'F':
			clock.sample_freq = number(optarg, "-F");
			break;
		case 's':
			clock.sample_stack_user = number(optarg, "-s");
			break;
		case 'b':
			megabytes = number(optarg, "-b");
			break;
		case 'o':
			out_name = optarg;
			break;
		default:
			fail("usage: recorder [-d] [-n SAMPLES] [-t SECONDS] [-N NAME] [-F HERTZ] "
			     "[-s BYTES] [-b MEGABYTES] -o FILE -- PROGRAM [ARGUMENT...]");
		}
	}
	if (!out_name || optind >= argc)
		fail("a file (-o FILE) and a program have to be given");
	clock.wakeup_watermark = megabytes << 18;
	out = fopen(out_name, "wbe");
	if (!out)
		fail("%s: %s", out_name, strerror(errno));
	setvbuf(out, NULL, _IOFBF, 1 << 20);

	child = start(argv + optind, &go);
	if (events)
		walk.config = number(strtok(text_of(events, TRACEPOINT "id"), "\n"), "the id");
	for (int cpu = 0; cpu < cpus; cpu++) {
		int fd = open_event(&clock, child, cpu);

		if (fd < 0 && errno == ENODEV)
			continue; /* a CPU that is off */
		if (fd < 0)
			fail("perf_event_open: %s; %s", strerror(errno),
			     errno == EINVAL && clock.defer_callchain ?
				     "does this kernel know deferred stacks (-d)?" :
				     "is this root, and the kernel one with perf?");
		rings[rings_there] = map_ring(fd, megabytes << 20);
		polls[rings_there++] = (struct pollfd){ .fd = fd, .events = POLLIN };
		clocks.of[clocks.count++] = id_of(fd);
		if (events) {
			int walk_fd = open_event(&walk, child, cpu);

			if (walk_fd < 0)
				fail("the tracepoint sframe_unwind:sframe_unwind_walk: %s",
				     strerror(errno));
			if (ioctl(walk_fd, PERF_EVENT_IOC_SET_OUTPUT, fd))
				fail("PERF_EVENT_IOC_SET_OUTPUT: %s", strerror(errno));
			walks.of[walks.count++] = id_of(walk_fd);
		}
	}
	if (!rings_there)
		fail("no CPU could be opened");

	put(MAGIC, 8);
	notes = open_memstream(&note, &note_length);
	uname(&system);
	fprintf(notes, "release=%s\nmodule=%d\ndeferred=%d\nfrequency=%" PRIu64 "\nmax_stack=%ld\n",
		system.release, events != NULL, clock.defer_callchain, (uint64_t)clock.sample_freq,
		(text = text_of(CALL_CHAIN_LIMIT, "")) ? atol(text) : 127);
	if (name)
		fprintf(notes, "name=%s\n", name);
	for (size_t i = 0; i < clocks.count; i++)
		fprintf(notes, "clock=%" PRIu64 "\n", clocks.of[i]);
	for (size_t i = 0; i < walks.count; i++)
		fprintf(notes, "walk=%" PRIu64 "\n", walks.of[i]);
	for (char **word = argv + optind; *word; word++)
		fprintf(notes, "argument=%s\n", *word);
	fclose(notes);
	put_record(RECORD_NOTE, note, note_length);
	if (events && (text = text_of(events, TRACEPOINT "format")))
		put_record(RECORD_FORMAT, text, strlen(text));
	put_vdso();

	if (write(go, "", 1) != 1)
		fail("the child is gone");
	end = time(NULL) + seconds;
	for (;;) {
		bool more = false;

		for (int i = 0; i < rings_there; i++)
			more |= drain(&rings[i], &clocks);
		if (ended && !more)
			break;
		if (!ended && waitpid(child, &status, WNOHANG) == child)
			ended = true;
		else if (!ended && (samples >= most_samples || time(NULL) >= end)) {
			kill(-child, SIGKILL);
			waitpid(child, &status, 0);
			status = 0;
			ended = true;
		} else if (!more)
			poll(polls, rings_there, 20);
	}

	notes = open_memstream(&note, &note_length);
	fprintf(notes, "samples=%" PRIu64 "\nrecords=%" PRIu64 "\nlost=%" PRIu64 "\nstatus=%d\n",
		samples, records, lost, status);
	fclose(notes);
	put_record(RECORD_TOTALS, note, note_length);
	if (fclose(out))
		fail("%s: cannot write: %s", out_name, strerror(errno));
	kill(-child, SIGKILL); /* what it has left behind */
	fprintf(stderr, "recorder: %" PRIu64 " samples, %" PRIu64 " records lost\n", samples, lost);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
