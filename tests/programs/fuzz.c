// SPDX-License-Identifier: GPL-2.0-only
/*
 * fuzz walk|ioctl|explore SEED FIRST ROUNDS SECONDS CORPUS [UID] - random input for the module,
 * from inside the kernel that it runs in. Ends after ROUNDS rounds or SECONDS seconds. A round
 * depends on SEED and its number alone, so `fuzz walk SEED N 1 60 CORPUS` repeats round N. CORPUS
 * is a directory of sections; some rounds begin with one of them.
 *
 * walk: each round makes an ELF file with a section, both spoilt mostly, maps it executable, and
 * takes its own stack in system calls from within the file's code, while the stack pointer and the
 * frame pointer point to a stack that is made up, or anywhere. Half of the rounds give rows to the
 * device, too.
 * ioctl: each round sends one command to /dev/sframe_unwind.
 * explore: as walk, and prints rounds in which a counter grows for the first time.
 *
 * GETPPID is the address of the kernel's function of that name: for a breakpoint, which takes
 * stacks like an NMI.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/hw_breakpoint.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sample.h"
#include "sframe_unwind.h"

#define PAGE 4096ul
#define TEXT PAGE		/* Offset of the code in the file. */
#define ROWS (2 * PAGE)		/* Offset of the section. */
#define SLOT 64			/* Bytes of a function. */
#define FUNCTIONS 64
#define MOST (3 * PAGE)		/* The longest section. */
#define FILE_SIZE (ROWS + MOST + PAGE)
#define STACK (2 * PAGE)
#define CALLS 24			/* System calls in a round. */

#define PT_SFRAME 0x6474e554

static unsigned long walks_asked, ioctls;

/* ---- Chance ---- */

static uint64_t state;

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static uint64_t any(void)
{
	return mix(state += 0x9e3779b97f4a7c15);
}

static uint64_t below(uint64_t limit)
{
	return limit ? any() % limit : 0;
}

static int one_in(unsigned int n)
{
	return below(n) == 0;
}

/* Numbers at which mistakes are made. */
static uint64_t edge(void)
{
	static const uint64_t edges[] = {
		0, 1, 2, 7, 8, 15, 16, 127, 128, 255, 256, 4095, 4096, 0x7fff, 0x8000, 0xffff,
		0x10000, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x7fffffffffff,
		0x7fffffffeff8, 0x7ffffffff000, 0x800000000000, 0xffff800000000000,
		0xffffffff81000000, 0x7fffffffffffffff, 0x8000000000000000, 0xfffffffffffff000,
		0xfffffffffffffff0, 0xffffffffffffffff,
	};
	uint64_t value = edges[below(sizeof(edges) / sizeof(*edges))];

	return one_in(4) ? value + below(33) - 16 : value;
}

/* ---- Sections ---- */

struct row {
	uint32_t start;
	int by_fp, outermost;
	int32_t cfa, fp;	/* `fp` is 0 if it is unchanged. */
};

struct function {
	uint32_t size;
	int rows;
	struct row row[4];
};

/* The right rows of the round, by which the stack is made. */
static struct function functions[FUNCTIONS];

static uint8_t *corpus[256];
static size_t corpus_size[256];
static int corpora;

static void read_corpus(const char *path)
{
	struct dirent **names;
	int n = scandir(path, &names, NULL, alphasort);

	if (n < 0) {
		perror(path);
		exit(2);
	}
	for (int i = 0; i < n && corpora < 256; i++) {
		char file[512];
		struct stat status;
		int in;

		snprintf(file, sizeof(file), "%s/%s", path, names[i]->d_name);
		in = open(file, O_RDONLY);
		if (in >= 0 && !fstat(in, &status) && S_ISREG(status.st_mode) &&
		    status.st_size <= (long)MOST) {
			corpus[corpora] = malloc(status.st_size + 1);
			corpus_size[corpora] = read(in, corpus[corpora], status.st_size);
			corpora++;
		}
		close(in);
	}
}

static void put(uint8_t **at, unsigned int width, uint64_t value)
{
	memcpy(*at, &value, width);
	*at += width;
}

static void make_functions(void)
{
	for (int i = 0; i < FUNCTIONS; i++) {
		struct function *f = &functions[i];
		int32_t cfa = 8;
		int fp = 0, by_fp = 0;

		f->size = one_in(32) ? below(SLOT) : SLOT;
		f->rows = 1 + below(4);
		for (int r = 0; r < f->rows; r++) {
			f->row[r] = (struct row){
				.start = r * (1 + below(SLOT / 4 - 1)),
				.cfa = cfa, .fp = fp, .by_fp = by_fp
			};
			if (r && f->row[r].start <= f->row[r - 1].start)
				f->row[r].start = f->row[r - 1].start + 1;
			if (!fp && one_in(3)) {
				cfa += 8;
				fp = -cfa;
			} else if (fp && !by_fp && one_in(2)) {
				by_fp = 1;
				cfa = -fp;
			} else if (!by_fp) {
				cfa += 8 * below(12);
			}
			if (one_in(100))
				f->row[r].outermost = 1;
		}
	}
}

/* Writes the rows of all functions as a section at the link-time address `address`; its length. */
static size_t make_section(uint8_t *out, uint64_t address)
{
	static uint8_t row_bytes[FUNCTIONS * 128];
	uint32_t rows_at[FUNCTIONS], rows = 0;
	int version = 1 + below(3), flags = one_in(16) ? 0 : 1, field, order[FUNCTIONS];
	uint8_t *to = row_bytes, *at = out;
	int count = 1 + below(FUNCTIONS), flex[FUNCTIONS], log2[FUNCTIONS], width[FUNCTIONS];
	int fixed_fp = 0;

	if (version > 1 && one_in(2))
		flags |= 4;
	if (one_in(2))
		count = FUNCTIONS;
	field = flags & 4 || !(flags & 1);
	for (int i = 0; i < count; i++)
		order[i] = i;
	if (!(flags & 1))
		for (int i = count - 1; i > 0; i--) {
			int j = below(i + 1), swap = order[i];

			order[i] = order[j];
			order[j] = swap;
		}
	for (int i = 0; i < count; i++) {
		struct function *f = &functions[order[i]];

		width[i] = below(3);
		flex[i] = version == 3 && one_in(4);
		rows_at[i] = to - row_bytes;
		if (version == 3) {
			put(&to, 2, f->rows);
			put(&to, 1, width[i] | (one_in(30) ? 0x80 : 0));
			put(&to, 1, flex[i]);
			put(&to, 1, 0);
		}
		for (int r = 0; r < f->rows; r++) {
			struct row *row = &f->row[r];
			int32_t words[6];
			int n = 0;

			log2[i] = row->cfa > 127 || row->fp < -128 ? 1 : below(3);
			if (row->outermost) {
			} else if (flex[i]) {
				words[n++] = 8 * (row->by_fp ? 6 : one_in(50) ? below(16) : 7) + 1 +
					     (one_in(20) ? 2 : 0);
				words[n++] = row->cfa;
				words[n++] = 2;
				words[n++] = -8;
				if (row->fp) {
					words[n++] = 2;
					words[n++] = row->fp;
				}
			} else {
				words[n++] = row->cfa;
				if (row->fp && !fixed_fp)
					words[n++] = row->fp;
			}
			put(&to, 1 << width[i], row->start);
			put(&to, 1, (row->by_fp ? 0 : 1) | n << 1 | log2[i] << 5);
			for (int w = 0; w < n; w++)
				put(&to, 1 << log2[i], words[w]);
			rows++;
		}
	}

	static const int entry[] = { 0, 17, 20, 16 };

	put(&at, 2, 0xdee2);
	put(&at, 1, version);
	put(&at, 1, flags);
	put(&at, 1, 3);
	put(&at, 1, fixed_fp);
	put(&at, 1, -8);
	put(&at, 1, 0);
	put(&at, 4, count);
	put(&at, 4, rows);
	put(&at, 4, to - row_bytes);
	put(&at, 4, 0);
	put(&at, 4, count * entry[version]);
	for (int i = 0; i < count; i++) {
		struct function *f = &functions[order[i]];
		uint64_t from = address + (field ? at - out : 0);

		put(&at, version == 3 ? 8 : 4, TEXT + order[i] * SLOT - from);
		put(&at, 4, f->size);
		put(&at, 4, rows_at[i]);
		if (version < 3) {
			put(&at, 4, f->rows);
			put(&at, 1, width[i]);
		}
		if (version == 2) {
			put(&at, 1, 0);
			put(&at, 2, 0);
		}
	}
	memcpy(at, row_bytes, to - row_bytes);
	return at - out + (to - row_bytes);
}

/* Spoils `size` bytes; their number afterwards. */
static size_t spoil(uint8_t *bytes, size_t size, size_t capacity)
{
	for (int times = one_in(3) ? 1 : 1 + below(12); times-- && size; ) {
		size_t at = below(one_in(4) && size > 64 ? 64 : size);
		unsigned int width = 1 << below(4);
		uint64_t value = one_in(2) ? edge() : any();

		switch (below(10)) {
		case 0:
			bytes[at] ^= 1 << below(8);
			break;
		case 1: case 2:
			if (at + width > size)
				width = size - at;
			memcpy(bytes + at, &value, width);
			break;
		case 3:	/* One of the header's words. */
			if (size >= 28 && one_in(4))
				memcpy(bytes + 8 + 4 * below(5), &value, 4);
			break;
		case 4:	/* A little more or less. */
			if (at + 4 <= size) {
				uint32_t word;

				memcpy(&word, bytes + at, 4);
				word += below(65) - 32;
				memcpy(bytes + at, &word, 4);
			}
			break;
		case 5: {	/* A piece of it elsewhere. */
			size_t from = below(size), length = 1 + below(64);

			if (at + length <= size && from + length <= size)
				memmove(bytes + at, bytes + from, length);
			break;
		}
		case 6:
			if (one_in(4))
				size = below(size + 1);
			break;
		case 7: {	/* Another section after it. */
			size_t with = (size + 7) & ~7ul;

			if (one_in(4) && 2 * with <= capacity) {
				memset(bytes + size, 0, with - size);
				memcpy(bytes + with, bytes, size);
				size += with;
			}
			break;
		}
		case 8:
			if (one_in(8))
				for (size_t i = at; i < size; i++)
					bytes[i] = any();
			break;
		default:
			bytes[at] = any();
		}
	}
	return size;
}

/* A section of whatever kind; its length. */
static size_t some_section(uint8_t *bytes, uint64_t address)
{
	size_t size;

	make_functions();
	if (corpora && one_in(6)) {
		int which = below(corpora);

		size = corpus_size[which];
		memcpy(bytes, corpus[which], size);
	} else if (one_in(20)) {
		size = below(MOST);
		for (size_t i = 0; i < size; i++)
			bytes[i] = any();
		if (size >= 4 && one_in(2))
			memcpy(bytes, "\xe2\xde\x02\x01", 4);
	} else {
		size = make_section(bytes, address);
		if (one_in(3))
			return size;
	}
	return spoil(bytes, size, MOST);
}

/* As a program does that reads the file next. */
static void read_change(struct sframe_unwind_add *add)
{
	struct stat state = {};

	(void)!fstat(add->file, &state);
	add->changed = state.st_ctim.tv_sec;
	add->changed_nsec = state.st_ctim.tv_nsec;
}

static unsigned int some_extra_rows(struct sframe_unwind_extra_row *rows, unsigned int most)
{
	unsigned int n = one_in(2) ? 0 : below(most + 1);
	uint64_t start = TEXT;

	for (unsigned int i = 0; i < n; i++) {
		start += below(2 * SLOT);
		rows[i] = (struct sframe_unwind_extra_row) {
			.start = one_in(20) ? edge() : start,
			.code_size = one_in(20) ? edge() : 1 + below(SLOT),
			.cfa_offset = one_in(20) ? (int32_t)edge() : (int32_t)below(33) * 8 - 128,
			.cfa_register = one_in(20) ? any() : one_in(2) ? 7 : below(16),
			.cfa_addend = 8 * below(16),
			.fp_saved = one_in(20) ? SFRAME_UNWIND_FP_AT_REGISTER : below(2),
			.flags = one_in(10) ? (uint8_t)below(16) : 0,
		};
		if (rows[i].fp_saved || one_in(50))
			rows[i].fp_offset = -16;
	}
	return n * sizeof(*rows);
}

/* ---- Files ---- */

/* All that can be entered: from here a system call is made, and it goes back to r13. */
static const unsigned int entries[] = { 4, 32, 54 };

static void make_text(uint8_t *text)
{
	memset(text, 0x90, FUNCTIONS * SLOT);
	for (int i = 0; i < FUNCTIONS; i++) {
		uint8_t *code = text + i * SLOT;

		for (int e = 0; e < 3; e++)
			memcpy(code + entries[e], "\x0f\x05\x41\xff\xe5", 5);
		memcpy(code + 16, "\xe8\x00\x00\x00\x00", 5);
		memcpy(code + 42, "\xff\x15\x00\x00\x00\x00", 6);
		if (one_in(4))
			memcpy(code, "\x55\x48\x89\xe5", 4);
	}
}

static const unsigned int returns[] = { 21, 48 };

/* An ELF file with the section; its length. */
static size_t make_file(uint8_t *file, size_t *section_size, int *pieces)
{
	Elf64_Ehdr *header = (void *)file;
	Elf64_Phdr *segments = (void *)(file + sizeof(*header));
	int n = 0, sections = one_in(2);

	memset(file, 0, FILE_SIZE);
	make_text(file + TEXT);
	*section_size = some_section(file + ROWS, ROWS);
	*pieces = one_in(2);
	memcpy(header->e_ident, ELFMAG "\2\1\1", 7);
	header->e_type = ET_DYN;
	header->e_machine = EM_X86_64;
	header->e_version = 1;
	header->e_phoff = sizeof(*header);
	header->e_ehsize = sizeof(*header);
	header->e_phentsize = sizeof(*segments);
	if (*pieces) {
		segments[n++] = (Elf64_Phdr){ PT_LOAD, PF_R, 0, 0, 0, TEXT, TEXT, PAGE };
		segments[n++] = (Elf64_Phdr){
			PT_LOAD, PF_R | PF_X, TEXT, TEXT, TEXT, PAGE, PAGE, PAGE
		};
		segments[n++] = (Elf64_Phdr){
			PT_LOAD, PF_R, ROWS, ROWS, ROWS, *section_size, *section_size, PAGE
		};
	} else {
		segments[n++] = (Elf64_Phdr){
			PT_LOAD, PF_R | PF_X, 0, 0, 0, ROWS + *section_size,
			ROWS + *section_size, PAGE
		};
	}
	if (!sections || !one_in(4))
		segments[n++] = (Elf64_Phdr){
			PT_SFRAME, PF_R, ROWS, ROWS, ROWS, *section_size, *section_size, 8
		};
	header->e_phnum = n;
	if (sections) {
		/* After the section, which may be as long as it likes. */
		static const char names[] = "\0.shstrtab\0.sframe";
		size_t at = ROWS + MOST;
		Elf64_Shdr *shdrs = (void *)(file + at);

		header->e_shoff = at;
		header->e_shnum = 3;
		header->e_shentsize = sizeof(*shdrs);
		header->e_shstrndx = 1;
		memcpy(file + at + 512, names, sizeof(names));
		shdrs[1] = (Elf64_Shdr){
			.sh_name = 1, .sh_type = SHT_STRTAB, .sh_offset = at + 512,
			.sh_size = sizeof(names)
		};
		shdrs[2] = (Elf64_Shdr){
			.sh_name = 11, .sh_type = SHT_PROGBITS, .sh_flags = SHF_ALLOC,
			.sh_addr = ROWS, .sh_offset = ROWS, .sh_size = *section_size
		};
		if (one_in(5))
			for (int times = 1 + below(3); times--; ) {
				uint64_t value = edge();

				memcpy(file + at + below(3 * sizeof(*shdrs)), &value,
				       1 << below(4));
			}
	}
	if (one_in(4)) {
		for (int times = 1 + below(3); times--; ) {
			uint64_t value = one_in(2) ? edge() : any();

			memcpy(file + below(sizeof(*header) + n * sizeof(*segments)), &value,
			       1 << below(4));
		}
	}
	return FILE_SIZE;
}

/* ---- Walks ---- */

/* Calls `target` with these for RSP, RBP and R15. */
extern void enter(const void *target, uint64_t sp, uint64_t fp, uint64_t other);
__asm__(".text\n"
	"enter:\n"
	"	push %rbp\n	push %rbx\n	push %r12\n"
	"	push %r13\n	push %r14\n	push %r15\n"
	"	mov %rsp, %r14\n"
	"	lea 1f(%rip), %r13\n"
	"	mov %rsi, %rsp\n"
	"	mov %rdx, %rbp\n"
	"	mov %rcx, %r15\n"
	"	mov %rcx, %rbx\n"
	"	mov %rdx, %r12\n"
	"	mov $110, %eax\n"		/* getppid */
	"	jmp *%rdi\n"
	"1:	mov %r14, %rsp\n"
	"	pop %r15\n	pop %r14\n	pop %r13\n"
	"	pop %r12\n	pop %rbx\n	pop %rbp\n"
	"	ret\n");

/* For each system call: many, as making a file takes longer than a walk. The last is deferred. */
#define EVENTS 20
static int events;

static void open_events(void)
{
	const char *getppid_at = getenv("GETPPID");
	struct perf_event_attr clock = {
		.type = PERF_TYPE_SOFTWARE, .size = sizeof(clock),
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.sample_period = 1000000, .sample_type = PERF_SAMPLE_CALLCHAIN,
		.exclude_callchain_kernel = 1,
	};
	struct perf_event_attr stop = {
		.type = PERF_TYPE_BREAKPOINT, .size = sizeof(stop), .bp_type = HW_BREAKPOINT_X,
		.bp_len = sizeof(long), .sample_period = 1, .sample_type = PERF_SAMPLE_CALLCHAIN,
		.exclude_callchain_kernel = 1,
	};

	for (int i = 0; i < EVENTS; i++) {
		if (sample_each_syscall(i == EVENTS - 1) < 0) {
			perror("perf_event_open");
			exit(2);
		}
		events++;
	}
	if (syscall(SYS_perf_event_open, &clock, 0, -1, -1, 0) < 0)
		perror("no cpu-clock");
	if (getppid_at) {
		stop.bp_addr = strtoull(getppid_at, NULL, 16);
		if (syscall(SYS_perf_event_open, &stop, 0, -1, -1, 0) < 0)
			perror("no breakpoint");
		else
			events++;
	}
}

/*
 * What a second thread writes to meanwhile: 0, or the address of the section in a shared mapping.
 */
static uint8_t *volatile target;
static volatile int is_writing;

static void *scribble(void *unused)
{
	unsigned int seed = 1;
	struct timespec moment = { .tv_nsec = 200000 };

	for (;;) {
		uint8_t *at;

		__atomic_store_n(&is_writing, 1, __ATOMIC_SEQ_CST);
		at = __atomic_load_n(&target, __ATOMIC_SEQ_CST);
		for (int i = 0; at && i < 200; i++) {
			seed = seed * 1103515245 + 12345;
			at[seed >> 8 & 0x3ff] = seed >> 20;
			/* Walks meet a task whose mappings change, too. */
			if (i % 20 == 0)
				munmap(mmap(NULL, PAGE, PROT_READ,
					    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), PAGE);
		}
		__atomic_store_n(&is_writing, 0, __ATOMIC_SEQ_CST);
		if (!at)
			nanosleep(&moment, NULL);
	}
	return unused;
}

static uint8_t *stack;

static uint64_t return_address(const uint8_t *code)
{
	return (uint64_t)code + below(FUNCTIONS) * SLOT + returns[below(2)];
}

/* The row that holds `at` bytes into a function. */
static const struct row *row_at(const struct function *f, unsigned int at)
{
	const struct row *row = NULL;

	for (int r = 0; r < f->rows; r++)
		if (f->row[r].start <= at)
			row = &f->row[r];
	return at < f->size ? row : NULL;
}

/* Makes a stack as by the right rows, from code `pc` on; some of its words are wrong. */
static void make_stack(const uint8_t *code, uint64_t pc, uint64_t sp, uint64_t *fp)
{
	uint64_t end = (uint64_t)stack + STACK - 64;
	uint64_t *fp_place = fp;

	for (uint64_t at = (uint64_t)stack; at < (uint64_t)stack + STACK; at += 64) {
		uint64_t *words = (uint64_t *)at;
		uint64_t offset = 8 * below(64);

		words[0] = words[3] = words[5] = return_address(code);
		words[1] = words[6] = at + offset;
		words[2] = words[4] = words[7] = 0;
	}
	*fp = sp + 8 * (4 + below(40));
	for (int depth = 0; depth < 60 && sp < end; depth++) {
		unsigned int offset = pc - (uint64_t)code - (depth ? 1 : 0);
		const struct row *row = offset < FUNCTIONS * SLOT ?
					row_at(&functions[offset / SLOT], offset % SLOT) : NULL;
		uint64_t cfa;

		if (!row || row->outermost)
			return;
		if (row->by_fp) {
			/* The frame pointer points to where this frame wants it. */
			cfa = sp + 16 + 8 * below(8);
			*fp_place = cfa - row->cfa;
		} else {
			cfa = sp + row->cfa;
		}
		if (cfa >= end)
			return;
		pc = return_address(code);
		if (one_in(200))
			pc = edge();
		*(uint64_t *)(cfa - 8) = pc;
		if (row->fp) {
			fp_place = (uint64_t *)(cfa + row->fp);
			if ((uint64_t)fp_place < sp || (uint64_t)fp_place >= end)
				return;
			*fp_place = cfa + 8 * below(32);
		}
		sp = cfa;
	}
}

static int device = -1;

/* A pointer to anywhere. */
static uint64_t anywhere(const uint8_t *base)
{
	switch (below(6)) {
	case 0: return edge();
	case 1: return any();
	case 2: return (uint64_t)base + below(FILE_SIZE);
	case 3: return (uint64_t)stack + STACK - below(64);
	case 4: return (uint64_t)stack - below(64);
	default: return (uint64_t)stack + below(STACK);
	}
}

static uint8_t *map(void *at, size_t size, int protection, int flags, int file, off_t offset)
{
	uint8_t *mapped = mmap(at, size, protection, flags, file, offset);

	if (mapped == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return mapped;
}

/* A region of this process's code at `base`, most of whose fields make sense. */
static void some_region(struct sframe_unwind_region *region, const uint8_t *base)
{
	*region = (struct sframe_unwind_region) {
		.size = sizeof(*region), .version = SFRAME_UNWIND_VERSION, .pid = getpid(),
		.start = (uint64_t)base, .end = (uint64_t)base + FILE_SIZE,
		.kind = one_in(8) ? below(7) : one_in(3) ? SFRAME_UNWIND_REGION_FIXED :
			one_in(3) ? SFRAME_UNWIND_REGION_TAGGED_STACK :
			SFRAME_UNWIND_REGION_CODE_HEAP,
	};
	if (one_in(4)) {
		region->guard = anywhere(base);
		region->guard_value = one_in(2) ? any() : 0;
	}
	if (region->kind == SFRAME_UNWIND_REGION_FIXED) {
		region->fp_saved = below(2);
		region->cfa_offset = one_in(10) ? edge() : 8 * below(64);
		region->fp_offset = one_in(10) ? edge() : -8 * below(32);
	} else if (region->kind == SFRAME_UNWIND_REGION_CODE_HEAP) {
		region->segment_log2 = one_in(10) ? below(64) : 4 + below(6);
		region->used_offset = below(64);
		region->header_offset = below(64);
		region->frame_size_offset = below(256);
		region->frame_complete_offset = below(256);
		region->frame_complete_size = one_in(2) ? 2 : 4;
		region->code_offset = below(256);
		region->code_size = one_in(2) ? 4 : 8;
		region->kind_offset = below(256);
		region->segment_map = one_in(3) ?
				      anywhere(base) : (uint64_t)base + below(FILE_SIZE);
		region->interpreter_start = (uint64_t)base + (one_in(2) ? below(FILE_SIZE) : 0);
		region->interpreter_end = region->interpreter_start + 1 +
					  below(one_in(2) ? FILE_SIZE : 64);
		region->kind_mask = one_in(2) ? 0xff : ~0ull;
		for (int i = 0; i < 4; i++)
			region->frameless_kinds[i] = below(8);
	} else if (region->kind == SFRAME_UNWIND_REGION_TAGGED_STACK) {
		region->exit_address = (uint64_t)base + below(FILE_SIZE);
		region->main_start = (uint64_t)base + below(FILE_SIZE);
		region->main_return = one_in(2) ?
				      anywhere(base) : (uint64_t)base + below(FILE_SIZE);
		region->main_frame = one_in(10) ? edge() : 16 * below(64);
		region->registers_offset = one_in(4) ? 0 : 8 * below(16);
		region->schedulers = anywhere(base);
		region->scheduler_count = one_in(10) ? edge() : below(8);
		region->scheduler_size = one_in(10) ? edge() : 64 * below(8);
		region->process_offset = 8 * below(64);
	}
	if (one_in(20))
		((uint8_t *)region)[8 + below(sizeof(*region) - 8)] = any();
}

static void walk(void)
{
	static uint8_t bytes[FILE_SIZE];
	static uint8_t other[MOST];
	struct sframe_unwind_extra_row extra[8];
	size_t section_size;
	int pieces, is_file = !one_in(device >= 0 ? 5 : 10), file = -1, scribbled = 0;
	uint8_t *base, *shared = NULL;

	make_file(bytes, &section_size, &pieces);
	if (is_file) {
		file = memfd_create("fuzz", 0);
		if (file < 0 || write(file, bytes, FILE_SIZE) != (ssize_t)FILE_SIZE) {
			perror("memfd");
			exit(2);
		}
		base = map(NULL, FILE_SIZE, PROT_READ | (pieces ? 0 : PROT_EXEC), MAP_PRIVATE,
			   file, 0);
		if (pieces)
			mprotect(base + TEXT, PAGE, PROT_READ | PROT_EXEC);
	} else {
		/* As if code were generated; or an image of no file, like the vDSO. */
		base = map(NULL, FILE_SIZE, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memcpy(base, bytes, FILE_SIZE);
		mprotect(base, FILE_SIZE, PROT_READ | PROT_EXEC);
	}
	/* Code in anonymous memory, as huge pages for text are. */
	if (is_file && pieces && one_in(20)) {
		map(base + TEXT, PAGE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		memcpy(base + TEXT, bytes + TEXT, PAGE);
		mprotect(base + TEXT, PAGE, PROT_READ | PROT_EXEC);
	}
	/* Pages of the section that are there, or are not. */
	switch (below(8)) {
	case 0:
		break;
	case 1:
		mprotect(base + ROWS, PAGE, PROT_NONE);
		break;
	case 2:
		munmap(base + ROWS + PAGE, PAGE);
		break;
	default:
		for (size_t at = 0; at < FILE_SIZE; at += PAGE)
			(void)((volatile uint8_t *)base)[at];
	}
	if (is_file && one_in(8)) {
		shared = map(NULL, MOST, PROT_READ | PROT_WRITE, MAP_SHARED, file, ROWS);
		scribbled = 1;
		__atomic_store_n(&target, shared, __ATOMIC_SEQ_CST);
	}
	for (int call = 0; call < CALLS; call++) {
		const uint8_t *code = base + TEXT;
		unsigned int entry = below(FUNCTIONS) * SLOT + entries[below(3)];
		uint64_t sp = (uint64_t)stack + 8 * below(256), fp;

		if (is_file && call == CALLS / 2 && device >= 0 && one_in(2)) {
			struct sframe_unwind_add add = {
				.size = sizeof(add), .version = SFRAME_UNWIND_VERSION, .file = file,
				.section = (uint64_t)other,
			};

			/* For link-time address 0; the rows of the stack are made anew. */
			add.section_len = some_section(other, 0);
			add.extra_rows = (uint64_t)extra;
			add.extra_rows_len = some_extra_rows(extra, 8);
			read_change(&add);
			(void)!ioctl(device, SFRAME_UNWIND_ADD, &add);
			ioctls++;
		}
		if (!is_file && call % 8 == 1 && device >= 0) {
			struct sframe_unwind_region region;

			some_region(&region, base);
			(void)!ioctl(device, SFRAME_UNWIND_REGION, &region);
			ioctls++;
		}
		make_stack(code, (uint64_t)code + entry + 2, sp, &fp);
		if (one_in(6))
			sp = anywhere(base);
		if (one_in(6))
			fp = anywhere(base);
		if (one_in(16))
			sp += below(9);
		enter(code + entry, sp, fp, anywhere(base));
		walks_asked += events;
		if (is_file && call == 1 && one_in(16))
			usleep(3000); /* For the worker. */
		if (is_file && call == 2 && !scribbled && one_in(16))
			(void)!ftruncate(file, ROWS);
	}
	if (scribbled) {
		__atomic_store_n(&target, NULL, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&is_writing, __ATOMIC_SEQ_CST))
			;
		munmap(shared, MOST);
	}
	munmap(base, FILE_SIZE);
	if (file >= 0)
		close(file);
}

/* ---- Commands ---- */

#define FILES 32
static int files[FILES];
static unsigned long errnos[256];

static const char *const names[] = { "ADD", "REMOVE", "LIST", "STATS", "REGION", "other" };
static const int allowed[][17] = {
	{ EPROTONOSUPPORT, EBADF, EINVAL, E2BIG, EFAULT, EFBIG, ENOEXEC, EBADMSG, EOPNOTSUPP,
	  ENOSPC, EIO, ENOMEM, ENOENT, ESTALE, EEXIST, EBUSY, EINTR },
	{ EPROTONOSUPPORT, EBADF, EINVAL, E2BIG, EFAULT, ENOENT, EACCES, ENOMEM },
	{ EPROTONOSUPPORT, EINVAL, E2BIG, EFAULT, ENOENT },
	{ EPROTONOSUPPORT, EINVAL, E2BIG, EFAULT, ENOENT },
	{ EPROTONOSUPPORT, EINVAL, E2BIG, EFAULT, ESRCH, ENOMEM, ENOENT, EBADF },
	{ ENOTTY },
};

static void make_files(void)
{
	static uint8_t bytes[FILE_SIZE];
	int which = below(FILES), pieces;
	size_t section_size;
	char path[64];

	if (files[which] > 2)
		close(files[which]);
	switch (below(16)) {
	case 0:
		files[which] = open("/dev/null", O_RDWR);
		return;
	case 1:
		files[which] = open("/tmp", O_RDONLY | O_PATH);
		return;
	case 2:
		files[which] = open("/usr/bin/sleep", O_RDONLY);
		return;
	case 3:
		files[which] = dup(device);
		return;
	/* Not open for reading. */
	case 4:
		files[which] = open("/proc/self/exe", O_PATH);
		return;
	case 5:
		snprintf(path, sizeof(path), "/tmp/fuzz.written.%d", getpid());
		files[which] = open(path, O_WRONLY | O_CREAT, 0700);
		(void)!ftruncate(files[which], below(20000));
		unlink(path);
		return;
	}
	files[which] = memfd_create("fuzz", 0);
	make_file(bytes, &section_size, &pieces);
	(void)!write(files[which], bytes, one_in(10) ? below(FILE_SIZE) : FILE_SIZE);
}

static void send_command(void)
{
	static union {
		uint8_t bytes[8192];
		struct sframe_unwind_add add;
		struct sframe_unwind_table table;
		struct sframe_unwind_counter counter;
		struct sframe_unwind_region region;
		struct sframe_unwind_request requests[8];
		struct {
			uint16_t size, version;
		};
	} body;
	static uint8_t section[MOST];
	static struct sframe_unwind_extra_row extra[8];
	static const unsigned long commands[] = {
		SFRAME_UNWIND_ADD, SFRAME_UNWIND_REMOVE, SFRAME_UNWIND_LIST, SFRAME_UNWIND_STATS,
		SFRAME_UNWIND_REGION
	};
	static const unsigned int sizes[] = {
		sizeof(body.add), sizeof(body.add), sizeof(body.table), sizeof(body.counter),
		sizeof(body.region), 24
	};
	static const int choice[] = { 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5 };
	int which = choice[below(12)], number = 0;
	unsigned long command = which < 5 ? commands[which] : any() & 0xffffffff;
	uint64_t where = (uint64_t)&body;

	if (ioctls < FILES || one_in(100))
		make_files();
	memset(&body, 0, 512);
	for (unsigned int i = 0; i < sizes[which]; i += 8) {
		uint64_t value = one_in(2) ? edge() : any();

		memcpy(body.bytes + i, &value, 8);
	}
	if (which < 2 && !one_in(10)) {
		body.add = (struct sframe_unwind_add) {
			.file = one_in(20) ? (int)edge() : files[below(FILES)],
			.section = (uint64_t)section,
			.section_len = which ? 0 : some_section(section, 0),
			.flags = one_in(30) ? any() : (uint64_t)one_in(30),
			.user = one_in(3) ? below(3000) : 0,
			.extra_rows = (uint64_t)extra,
			.extra_rows_len = which ? 0 : some_extra_rows(extra, 8),
		};
		if (!one_in(20))
			read_change(&body.add);
		if (one_in(30))
			body.add.section = edge();
		if (one_in(30))
			body.add.section_len = one_in(2) ? edge() : below(200);
		if (one_in(30))
			body.add.extra_rows = edge();
		if (one_in(30))
			body.add.extra_rows_len = edge();
	} else if (which == 2 && !one_in(4)) {
		body.table.number = below(ioctls + 1);
	} else if (which == 3 && !one_in(4)) {
		body.counter.index = below(80);
	} else if (which == 4 && !one_in(10)) {
		some_region(&body.region, (const uint8_t *)(PAGE * below(1 << 20)));
		if (one_in(10))
			body.region.pid = below(300);
	}
	body.size = one_in(20) ? edge() : sizes[which];
	body.version = one_in(40) ? edge() : SFRAME_UNWIND_VERSION;
	if (one_in(40) && body.size < 4096)
		body.bytes[body.size + below(8)] = 1;
	if (one_in(20))
		where = one_in(2) ? edge() : (uint64_t)&body + below(4096);
	/* The size in the command is of no meaning. */
	if (which < 5 && one_in(4))
		command ^= below(64) << 16;
	if (which == 5) {
		unsigned int known = command & 0xff;

		if ((command >> 8 & 0xff) == 'S' && known >= 0x80 && known <= 0x84)
			command ^= 0x10;
	}
	if (ioctl(device, command, where))
		number = errno;
	ioctls++;
	errnos[number < 256 ? number : 255]++;
	if (number) {
		int is_allowed = 0;

		for (int i = 0; i < 17; i++)
			is_allowed |= allowed[which][i] == number;
		if (!is_allowed) {
			printf("%s: errno %d (%s) is not documented\n", names[which], number,
			       strerror(number));
			exit(1);
		}
	}
	if (one_in(20))
		(void)!read(device, one_in(10) ? (void *)edge() : body.bytes, below(sizeof(body)));
	if (one_in(20)) {
		struct pollfd wait = { .fd = device, .events = POLLIN };

		poll(&wait, 1, 0);
	}
}

/* ---- Exploring ---- */

#define COUNTERS 96
static uint8_t was_seen[COUNTERS];

static void explore(unsigned long seed, unsigned long round)
{
	struct sframe_unwind_counter counter;

	for (unsigned int i = 0; i < COUNTERS; i++) {
		counter = (struct sframe_unwind_counter){
			.size = sizeof(counter), .version = SFRAME_UNWIND_VERSION, .index = i,
		};
		if (ioctl(device, SFRAME_UNWIND_STATS, &counter))
			break;
		if (counter.value && !was_seen[i] && round)
			printf("walk %lu %lu 1 # %s\n", seed, round, counter.name);
		was_seen[i] |= counter.value != 0;
	}
}

int main(int argc, char **argv)
{
	pthread_t thread;
	struct timespec now;
	time_t end;

	if (argc < 7) {
		fprintf(stderr,
			"usage: fuzz walk|ioctl|explore SEED FIRST ROUNDS SECONDS CORPUS [UID]\n");
		return 2;
	}
	unsigned long seed = strtoul(argv[2], NULL, 10), first = strtoul(argv[3], NULL, 10);
	unsigned long rounds = strtoul(argv[4], NULL, 10), round;
	int walks = strcmp(argv[1], "ioctl"), explores = !strcmp(argv[1], "explore");

	read_corpus(argv[6]);
	device = open("/dev/sframe_unwind", O_RDWR | O_NONBLOCK);
	if (device < 0) {
		perror("/dev/sframe_unwind");
		return 2;
	}
	if (walks) {
		/* With nothing mapped around it. */
		stack = map(NULL, STACK + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		stack += PAGE;
		mprotect(stack, STACK, PROT_READ | PROT_WRITE);
		if (pthread_create(&thread, NULL, scribble, NULL))
			return 2;
		open_events();
	}
	if (argc > 7 && setuid(atoi(argv[7])))
		return 2;
	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec + atoi(argv[5]);
	if (explores)
		explore(seed, 0);
	memset(files, -1, sizeof(files));
	for (round = first; round < first + rounds; round++) {
		state = mix(seed) ^ mix(round * 2 + 1);
		if (!walks) {
			send_command();
		} else {
			walk();
			if (explores)
				explore(seed, round);
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec >= end) {
			round++;
			break;
		}
	}
	printf("%s seed %lu: rounds %lu to %lu, %lu walks asked for, %lu ioctls\n", argv[1], seed,
	       first, round - 1, walks_asked, ioctls);
	for (int i = 0; i < 256 && !walks; i++)
		if (errnos[i])
			printf("  %lu times %s\n", errnos[i], i ? strerror(i) : "done");
	return 0;
}
