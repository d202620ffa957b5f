// SPDX-License-Identifier: GPL-2.0-only
/*
 * region [SECONDS [HOW]] - makes code at run time, tells /dev/sframe_unwind how its frames are laid
 * out, and computes for SECONDS (5) below a call from this code. The stacks of this program are
 * complete in `perf record --call-graph fp`. Needs CAP_PERFMON, or the module's parameter
 * own_regions.
 *
 * It prints its process ID when it begins to compute. HOW is for tests: `none` registers no region;
 * `guard` changes the guard's word when SIGUSR1 comes; `fork` computes in a child process; `again`
 * replaces the code by other code, at the same addresses; `many` first registers more regions than
 * a process may have; `beside` runs other code of the same mapping until SIGUSR1 comes; `below`
 * computes in that other code, below a call from the region, and tells that this code has no
 * region; `unknown` does not tell; `eh_frame` registers no region, and has .eh_frame beside the
 * code, as programs have that compile with LLVM; `freed` does too, and clears .eh_frame when
 * SIGUSR1 comes; `replaced` then registers a region without frames; `parent` describes code of the
 * parent process, and `rows` tells that the code has the rows of this file. After SIGUSR1 it prints
 * `changed`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sframe_unwind.h"

static double seconds = 5;
static const char *how = "";
static volatile unsigned long guard = 0x5ca1ab1e, sum;
static unsigned char *code;
static int device;

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* The offset of: dec %rdi; jne to the first instruction; ret. */
#define BESIDE 64

/* The offset of .eh_frame, in the page after the code, which stays writable. */
#define EH_FRAME 4096

/*
 * For the frame of 0x68 bytes: CFA = rsp + 8 at first, rsp + 0x70 after seven bytes, and rsp + 8
 * after nine more.
 */
static const unsigned char eh_frame[] = {
	20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
	/* The distance to the code, and its length. */
	24, 0, 0, 0, 28, 0, 0, 0, -(EH_FRAME + 32) & 0xff, -(EH_FRAME + 32) >> 8 & 0xff, 0xff, 0xff,
	17, 0, 0, 0, 0, 0x47, 0x0e, 0xf0, 0, 0x49, 0x0e, 8, 0, 0, 0, 0, 0, 0, 0, 0
};

static int has_eh_frame(void)
{
	return !strcmp(how, "eh_frame") || !strcmp(how, "freed") || !strcmp(how, "replaced");
}

/* Registers a region of a kind without further fields, from and up to these offsets in the code. */
static void register_part(int start, int end, int kind)
{
	struct sframe_unwind_region region = {
		.size = sizeof(region),
		.version = SFRAME_UNWIND_VERSION,
		.pid = getpid(),
		.start = (unsigned long)code + start,
		.end = (unsigned long)code + end,
		.kind = kind,
	};

	if (ioctl(device, SFRAME_UNWIND_REGION, &region)) {
		perror("/dev/sframe_unwind");
		exit(1);
	}
}

/* Whether SIGUSR1 has come. It stays blocked, so that no handler is in a stack. */
static int is_told(void)
{
	sigset_t pending;

	return !sigpending(&pending) && sigismember(&pending, SIGUSR1);
}

static void say(const char *line)
{
	puts(line);
	fflush(stdout);
}

static void change(void)
{
	if (!strcmp(how, "guard"))
		guard = 0;
	if (!strcmp(how, "freed"))
		memset(code + EH_FRAME, 0, sizeof(eh_frame));
	if (!strcmp(how, "replaced"))
		register_part(0, BESIDE, SFRAME_UNWIND_REGION_STOP);
	say("changed");
}

__attribute__((noipa)) static void compute(void)
{
	double start = now();
	int is_changed = 0;

	while (now() < start + seconds) {
		for (unsigned long i = 0; i < 10000000; i++)
			sum += i;
		if (!is_changed && is_told()) {
			change();
			is_changed = 1;
		}
	}
}

static void finish(int signal)
{
	_exit(signal != SIGALRM);
}

/*
 * sub $SIZE,%rsp; call *%rdi; nop; lea SIZE(%rsp),%rsp; ret. Between the first and the last two,
 * the frame has SIZE bytes. Without a region the walk does not know this code: it would follow add
 * $SIZE,%rsp.
 */
static unsigned char *make(int size, unsigned char *place)
{
	unsigned char instructions[] = {
		0x48, 0x81, 0xec, size, 0, 0, 0, 0xff, 0xd7, 0x66, 0x90, 0x48, 0x8d,
		0x64, 0x24, size, 0xc3,
		[BESIDE] = 0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3
	};
	unsigned char *at = mmap(place, EH_FRAME + 4096, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0), -1, 0);

	if (at != MAP_FAILED && has_eh_frame())
		memcpy(at + EH_FRAME, eh_frame, sizeof(eh_frame));
	if (at == MAP_FAILED || !memcpy(at, instructions, sizeof(instructions)) ||
	    mprotect(at, 4096, PROT_READ | PROT_EXEC)) {
		perror("mmap");
		exit(1);
	}
	return at;
}

int main(int argc, char **argv)
{
	int size = 0x68;
	struct sframe_unwind_region region;
	int child = 0;
	char line[32];
	sigset_t signals;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	device = open("/dev/sframe_unwind", O_RDWR);
	if (argc > 1)
		seconds = atof(argv[1]);
	if (argc > 2)
		how = argv[2];
	code = make(size, NULL);
	/* The CFA is above the return address, which the call of this code has pushed. */
	region = (struct sframe_unwind_region){
		.size = sizeof(region),
		.version = SFRAME_UNWIND_VERSION,
		.pid = getpid(),
		.start = (unsigned long)code + 7,
		.end = (unsigned long)code + 10,
		.guard = (unsigned long)&guard,
		.guard_value = guard,
		.kind = SFRAME_UNWIND_REGION_FIXED,
		.fp_saved = SFRAME_UNWIND_FP_UNCHANGED,
		.cfa_offset = size + 8,
	};
	if (!strcmp(how, "parent"))
		region.pid = getppid();
	if (!strcmp(how, "rows")) {
		region.kind = SFRAME_UNWIND_REGION_ROWS;
		region.rows_file = open(argv[0], O_RDONLY);
	}
	if (!strcmp(how, "many")) {
		struct sframe_unwind_region other = region;

		for (int i = 1; i < 3000; i++) {
			other.start = region.start + 4096 * i;
			other.end = other.start + 1;
			if (ioctl(device, SFRAME_UNWIND_REGION, &other))
				return 1;
		}
	}
	if (device < 0 || (strcmp(how, "none") && !has_eh_frame() &&
			   ioctl(device, SFRAME_UNWIND_REGION, &region))) {
		perror("/dev/sframe_unwind");
		return 1;
	}
	if (!strcmp(how, "again"))
		make(0x48, code);
	if (!strcmp(how, "fork"))
		child = fork();
	if (child)
		return waitpid(child, NULL, 0) != child;
	snprintf(line, sizeof(line), "process %d", getpid());
	say(line);
	if (!strcmp(how, "beside"))
		while (!is_told())
			((void (*)(unsigned long))(code + BESIDE))(10000000);
	if (!strcmp(how, "below"))
		/* Walks may follow frame pointers there: it leaves rbp alone. */
		register_part(BESIDE, EH_FRAME, SFRAME_UNWIND_REGION_NONE);
	if (!strcmp(how, "below") || !strcmp(how, "unknown")) {
		/* Its count is its own address, which is enough for days. */
		signal(SIGALRM, finish);
		alarm((unsigned int)seconds + 1);
		((void (*)(unsigned char *))code)(code + BESIDE);
	}
	((void (*)(void (*)(void)))code)(compute);
	return 0;
}
