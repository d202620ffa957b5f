// SPDX-License-Identifier: GPL-2.0-only
/*
 * usage: worst KIND COUNT DEPTH TURNS
 *
 * A program that is made to be slow to walk. It makes COUNT files of kind KIND in /tmp/worst, maps
 * them executable, and has DEPTH functions, each in the next file, call each other; the innermost
 * loops for about 60 microseconds, TURNS times, twice, with a rest between. KIND:
 *
 * mappings  one file without rows, COUNT times
 * files     files without rows
 * headers   files without rows (but the first), with as many program headers as are read, a long
 *           table of functions, and as many mappings between the code and the first mapping as are
 *           looked at
 * handlers  as headers, but the functions save registers as those do that serve exception
 *           handlers, and behind the return addresses are bytes of the jump to a handler
 * rows      files with sections in which the row of the return address is the last one that is
 *           looked at
 * dense     the same, for tables: a row for each byte, with rules that are not compact
 * dense_rbx the same, but the rows of the outermost function's file count from rbx, which a second
 *           walk finds: the others' rows tell that their functions save rbx, where they save rbp.
 *           The innermost loop is in the last of at least two files
 * deep      as rows, for tables
 * faults    one file with a section, and return addresses in pages of it that were never touched
 * regions   no files: code heaps like HotSpot's, in which the search for a method takes as many
 *           hops as are made. The program registers them, which needs CAP_PERFMON
 */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sframe_unwind.h"

#define PAGE 4096ul
/*
 * Limits of the module: rust/sframe/src/elf/program.rs, rust/c/mappings.c, format/section.rs,
 * runtimes/hotspot.rs.
 */
#define MAX_PROGRAM_HEADERS 64
#define HEAD_DISTANCE 16
#define MAX_ROWS_BOUNDED 1024
#define HOPS 64

/* Offsets in a file, equal to link-time addresses. */
#define FILLED PAGE
#define CODE (FILLED + HEAD_DISTANCE * PAGE)
#define FUNCTION_AT 0
/* The return address is 9 bytes further, at the last byte of a page of a table. */
#define CALL_AT (5 * 256 - 1 - 9)
#define LOOP_AT (CALL_AT + 64)
#define FIRST_ROW (CALL_AT + 9 - MAX_ROWS_BOUNDED)
/* Farther from the CFA than in a compact rule. */
#define FAR 40000
#define DATA (CODE + PAGE)
#define HDR_ENTRIES 100000u
#define FDE_AT (12 + 8ul * HDR_ENTRIES)
#define SIZE (DATA + FDE_AT + 32)

#define PT_GNU_SFRAME 0x6474e554

struct sframe_header {
	uint16_t magic;
	uint8_t version, flags, abi;
	int8_t fp_offset, ra_offset;
	uint8_t auxiliary;
	uint32_t functions, rows, rows_size, functions_at, rows_at;
} __attribute__((packed));

struct sframe_function {
	int32_t start;
	uint32_t size, rows_at, rows;
	uint8_t info, block;
	uint16_t padding;
} __attribute__((packed));

/* Version 3. */
struct sframe_function_3 {
	int64_t start;
	uint32_t size, rows_at;
} __attribute__((packed));

struct sframe_rows_3 {
	uint16_t rows;
	uint8_t info, info_2, block;
} __attribute__((packed));

struct row {
	uint16_t start;
	uint8_t info;
	int8_t cfa, fp;
} __attribute__((packed));

struct far_row {
	uint16_t start;
	uint8_t info;
	int32_t cfa, fp;
} __attribute__((packed));

/* Of a flexible function. */
struct flexible_row {
	uint16_t start;
	uint8_t info;
	int32_t cfa_from, cfa, ra_from, ra, fp_from, fp;
} __attribute__((packed));

typedef void function(void **next);

static volatile long sink;

static void last(void **next)
{
	unsigned long turns = 20000;

	do
		__asm__ volatile("nop" : "+r"(turns));
	while (--turns);
	sink += (long)next;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void put_code(unsigned char *code, int size, int handlers)
{
	/* push %rbp; mov %rsp,%rbp */
	static const unsigned char enter[] = { 0x55, 0x48, 0x89, 0xe5 };
	/* mov (%rdi),%rax; add $8,%rdi; call *%rax; pop %rbp; ret */
	static const unsigned char call[] = {
		0x48, 0x8b, 0x07, 0x48, 0x83, 0xc7, 0x08, 0xff, 0xd0, 0x5d, 0xc3
	};

	/* push %rdx; push %rax; later leave; ret */
	static const unsigned char saves[] = { 0x52, 0x50 }, leaves[] = { 0xc9, 0xc3 };

	memset(code, 0x90, size);
	memcpy(code + FUNCTION_AT, enter, sizeof(enter));
	memcpy(code + CALL_AT, call, sizeof(call));
	if (handlers) {
		/* The last bytes that are searched for them. */
		memcpy(code + FUNCTION_AT + 62, saves, sizeof(saves));
		memcpy(code + CALL_AT + 9, leaves, sizeof(leaves));
		memset(code + CALL_AT + 11, 0xcc, size - CALL_AT - 11);
	}
}

static void put_headers(unsigned char *file, int count, uint64_t data, uint64_t sframe_size,
			uint64_t hdr_size, uint64_t size)
{
	Elf64_Ehdr header = {
		.e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
		.e_type = ET_DYN, .e_machine = EM_X86_64, .e_version = EV_CURRENT,
		.e_phoff = sizeof(header),
		.e_ehsize = sizeof(header), .e_phentsize = sizeof(Elf64_Phdr), .e_phnum = count,
	};
	Elf64_Phdr headers[MAX_PROGRAM_HEADERS] = {};

	headers[count - 1] = (Elf64_Phdr){
		.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = size, .p_memsz = size,
		.p_align = PAGE,
	};
	if (sframe_size)
		headers[count - 2] = (Elf64_Phdr){
			.p_type = PT_GNU_SFRAME, .p_flags = PF_R, .p_offset = data, .p_vaddr = data,
			.p_filesz = sframe_size, .p_memsz = sframe_size,
		};
	if (hdr_size)
		headers[count - 3] = (Elf64_Phdr){
			.p_type = PT_GNU_EH_FRAME, .p_flags = PF_R, .p_offset = data,
			.p_vaddr = data,
			.p_filesz = hdr_size, .p_memsz = hdr_size,
		};
	memcpy(file, &header, sizeof(header));
	memcpy(file + sizeof(header), headers, count * sizeof(*headers));
}

/*
 * .eh_frame_hdr: the starts of functions, the middle one being the file's function; and the FDE of
 * that function.
 */
static uint64_t put_hdr(unsigned char *to)
{
	int32_t *entry = (int32_t *)(to + 12);
	uint32_t i, count = HDR_ENTRIES;

	memcpy(to, "\1\x1b\3\x3b", 4);
	memcpy(to + 8, &count, 4);
	for (i = 0; i < count; i++, entry += 2) {
		entry[0] = (int32_t)(CODE - DATA) + 2 * (int32_t)(i - count / 2) * (int32_t)PAGE;
		entry[1] = FDE_AT;
	}
	/* The FDE: its length, its CIE, the start relative to this field, the size. */
	entry = (int32_t *)(to + FDE_AT);
	entry[0] = 16;
	entry[2] = (int32_t)CODE - (int32_t)(DATA + FDE_AT + 8);
	entry[3] = PAGE;
	return FDE_AT;
}

static uint64_t put_section(unsigned char *to, int dense)
{
	int i;
	struct row *rows;
	struct far_row *far;
	struct sframe_header *header = (void *)to;
	struct sframe_function *one = (void *)(header + 1);

	*header = (struct sframe_header){
		.magic = 0xdee2, .version = 2, .flags = 1 | 4, .abi = 3, .ra_offset = -8,
		.functions = 1,
		.rows = MAX_ROWS_BOUNDED,
		.rows_size = MAX_ROWS_BOUNDED * (dense ? sizeof(*far) : sizeof(*rows)),
		.rows_at = sizeof(*one),
	};
	*one = (struct sframe_function){
		.start = (int32_t)CODE - (int32_t)((unsigned char *)one - to + DATA), .size = PAGE,
		.rows = MAX_ROWS_BOUNDED, .info = 1,
	};
	/* CFA = rsp + 16, rbp saved in one of two places: any words. */
	far = (struct far_row *)(one + 1);
	for (i = 0; dense && i < MAX_ROWS_BOUNDED; i++)
		far[i] = (struct far_row){ i ? FIRST_ROW + i : 0, 1 | 2 << 1 | 2 << 5, 16,
					   -FAR - i % 2 * 8 };
	if (dense)
		return (unsigned char *)(far + i) - to;
	/* CFA = rbp + 16, rbp saved at CFA - 16. */
	rows = (struct row *)(one + 1);
	for (i = 0; i < MAX_ROWS_BOUNDED; i++)
		rows[i] = (struct row){ i, 2 << 1, 16, -16 };
	return (unsigned char *)(rows + i) - to;
}

/* As `dense`. The CFA counts from the register `cfa_from`; rbx is saved where rbp is. */
static uint64_t put_flexible_section(unsigned char *to, int cfa_from)
{
	int i;
	struct sframe_header *header = (void *)to;
	struct sframe_function_3 *one = (void *)(header + 1);
	struct sframe_rows_3 *rows = (void *)(one + 1);
	struct flexible_row *row = (void *)(rows + 1);

	*header = (struct sframe_header){
		.magic = 0xdee2, .version = 3, .flags = 1 | 4, .abi = 3, .ra_offset = -8,
		.functions = 1, .rows = MAX_ROWS_BOUNDED,
		.rows_size = sizeof(*rows) + MAX_ROWS_BOUNDED * sizeof(*row),
		.rows_at = sizeof(*one),
	};
	*one = (struct sframe_function_3){
		.start = (int64_t)CODE - ((unsigned char *)one - to + DATA), .size = PAGE,
	};
	/* Flexible; the caller's rbx is two words below the CFA. */
	*rows = (struct sframe_rows_3){ MAX_ROWS_BOUNDED, 1, 1 | 2 << 5 };
	/* A register is 8 * number + 1, and 2 is a word in memory, which counts from the CFA. */
	for (i = 0; i < MAX_ROWS_BOUNDED; i++)
		row[i] = (struct flexible_row){ i ? FIRST_ROW + i : 0, 6 << 1 | 2 << 5,
						8 * cfa_from + 1, 16, 2, -8, 2, -FAR - i % 2 * 8 };
	return (unsigned char *)(row + i) - to;
}

static int make(const char *kind, int number)
{
	/* push %rbp; mov %rsp,%rbp; mov $20000,%eax; nop; dec %eax; jnz back; pop %rbp; ret */
	static const unsigned char loop[] = {
		0x55, 0x48, 0x89, 0xe5, 0xb8, 0x20, 0x4e, 0, 0, 0x90, 0xff, 0xc8, 0x75, 0xfb,
		0x5d, 0xc3
	};
	enum { RBX = 3, RSP = 7 };
	int dense = !strcmp(kind, "dense"), dense_rbx = !strcmp(kind, "dense_rbx");
	int rows = dense || dense_rbx || !strcmp(kind, "rows") || !strcmp(kind, "deep");
	int handlers = !strcmp(kind, "handlers"), headers = handlers || !strcmp(kind, "headers");
	int count = headers || rows ? MAX_PROGRAM_HEADERS : 4;
	unsigned long size = headers || rows ? SIZE : DATA;
	char name[64];
	unsigned char *file;
	int fd;

	snprintf(name, sizeof(name), "/tmp/worst/%s-%d", kind, number);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0755);
	if (fd < 0 || ftruncate(fd, size))
		die(name);
	file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		die("mmap");
	put_code(file + CODE, PAGE, handlers);
	if (dense_rbx) {
		memcpy(file + CODE + LOOP_AT, loop, sizeof(loop));
		put_headers(file, count, DATA,
			    put_flexible_section(file + DATA, number ? RSP : RBX), 0, SIZE);
	} else if (rows || (headers && !number))
		put_headers(file, count, DATA, put_section(file + DATA, dense), 0, SIZE);
	else
		put_headers(file, count, DATA, 0, headers ? put_hdr(file + DATA) : 0, SIZE);
	munmap(file, size);
	close(fd);
	/* Opened read-only again: the file must not be writable, like the files of programs. */
	fd = open(name, O_RDONLY);
	return fd;
}

/* Maps a file, the whole of it or only its code. Returns the address of its function. */
static void *map(int fd, int whole)
{
	static char *at = (char *)0x10000000000;
	unsigned long i, size = whole ? (SIZE + PAGE - 1) & -PAGE : PAGE;
	char *file = at;

	at += size + PAGE;
	if (mmap(file, size, PROT_READ | (whole ? 0 : PROT_EXEC), MAP_PRIVATE | MAP_FIXED_NOREPLACE,
		 fd, whole ? 0 : CODE) == MAP_FAILED)
		die("mmap");
	if (!whole) {
		sink += *(volatile char *)file;
		return file;
	}
	for (i = 0; i < size; i += PAGE)
		sink += file[i];
	if (mprotect(file + CODE, PAGE, PROT_READ | PROT_EXEC))
		die("mprotect");
	/* Mappings between the code and the file's first mapping; they cannot be merged. */
	for (i = FILLED + PAGE; i < CODE - PAGE; i += 2 * PAGE)
		if (mprotect(file + i, PAGE, PROT_NONE))
			die("mprotect");
	sink += *(volatile char *)(file + CODE);
	return file + CODE;
}

/*
 * A code heap and its segment map; they cannot be merged with other mappings. Returns the address
 * of its function.
 */
static void *map_region(int number)
{
	enum { SEGMENT_LOG2 = 5, USED = 8, BLOB = 16, FRAME_SIZE = 0 };
	char *heap = (char *)(0x20000000000 + 4 * PAGE * number);
	unsigned char *map = (unsigned char *)heap + PAGE;
	struct sframe_unwind_region region = {
		.size = sizeof(region), .version = SFRAME_UNWIND_VERSION, .pid = getpid(),
		.start = (uint64_t)heap, .end = (uint64_t)heap + PAGE,
		.guard = (uint64_t)heap, .guard_value = 0x1122334455667788,
		.kind = SFRAME_UNWIND_REGION_CODE_HEAP, .segment_log2 = SEGMENT_LOG2,
		.used_offset = USED, .header_offset = BLOB, .frame_size_offset = FRAME_SIZE,
		.frame_complete_size = 4, .code_size = 8, .segment_map = (uint64_t)map,
		.interpreter_end = 1,
	};
	static int device = -1;
	/*
	 * The call's return address is in the segment from which the most hops lead to the block,
	 * at the heap's start.
	 */
	int entry = (HOPS << SEGMENT_LOG2) - CALL_AT;

	if (mmap(heap, 2 * PAGE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
		die("mmap");
	memset(map, 1, HOPS + 1);
	map[0] = 0;
	put_code((unsigned char *)heap + entry, CALL_AT + 32, 0);
	*(uint64_t *)heap = region.guard_value;
	heap[USED] = 1;
	*(int *)(heap + BLOB + FRAME_SIZE) = 2;
	if (mprotect(heap, PAGE, PROT_READ | PROT_EXEC))
		die("mprotect");
	if (device < 0)
		device = open("/dev/sframe_unwind", O_RDWR);
	if (ioctl(device, SFRAME_UNWIND_REGION, &region))
		die("/dev/sframe_unwind");
	return heap + entry;
}

/*
 * Frames that no call has made: each returns to an address after the end of a function, so the
 * walk reads the function's code, in a page that was never touched.
 */
static void faults(int depth, int turns)
{
	unsigned long at = CODE + depth * PAGE, size = at + sizeof(struct sframe_header) +
		depth * (sizeof(struct sframe_function) + sizeof(struct row));
	int i, fd = open("/tmp/worst/faults", O_RDWR | O_CREAT | O_TRUNC, 0755);
	struct sframe_header *header;
	struct sframe_function *one;
	struct row *rows;
	char *file, *code;
	/* On the stack, because the walk accepts frames only there. */
	void *frames[2 * depth + 2];

	if (fd < 0 || ftruncate(fd, size))
		die("/tmp/worst/faults");
	file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		die("mmap");
	header = (void *)(file + at);
	one = (void *)(header + 1);
	rows = (void *)(one + depth);
	*header = (struct sframe_header){
		.magic = 0xdee2, .version = 2, .flags = 1 | 4, .abi = 3, .ra_offset = -8,
		.functions = depth,
		.rows = depth, .rows_size = depth * sizeof(*rows), .rows_at = depth * sizeof(*one),
	};
	for (i = 0; i < depth; i++) {
		one[i] = (struct sframe_function){
			.start = (int32_t)(CODE + i * PAGE) - (int32_t)((char *)&one[i] - file),
			.size = PAGE / 2,
			.rows_at = i * sizeof(*rows), .rows = 1, .info = 1,
		};
		rows[i] = (struct row){ 0, 2 << 1, 16, -16 };
	}
	/*
	 * The innermost frame has no row, so its caller needs a call instruction before the return
	 * address.
	 */
	file[CODE + PAGE / 2 - 5] = 0xe8;
	put_headers((unsigned char *)file, MAX_PROGRAM_HEADERS, at, size - at, 0, size);
	munmap(file, size);
	close(fd);
	fd = open("/tmp/worst/faults", O_RDONLY);
	file = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	code = mmap(file + CODE, depth * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd,
		    CODE);
	if (file == MAP_FAILED || code == MAP_FAILED)
		die("mmap");
	sink += *(volatile char *)file + *(volatile char *)(file + at) +
		*(volatile char *)(file + size - 1);
	for (i = 0; i < depth; i++) {
		frames[2 * i] = frames + 2 * i + 2;
		frames[2 * i + 1] = code + i * PAGE + PAGE / 2;
	}
	frames[2 * depth] = frames[2 * depth + 1] = NULL;
	madvise(code, depth * PAGE, MADV_DONTNEED);
	madvise(code, depth * PAGE, MADV_RANDOM);
	sink += *(volatile char *)code;
	while (turns--) {
		unsigned long left = 20000;

		__asm__ volatile("push %%rbp; mov %1, %%rbp; 1: nop; dec %0; jnz 1b; pop %%rbp"
				 : "+a"(left) : "r"(frames) : "memory", "cc");
	}
}

/* The words that far rows lead to. */
__attribute__((noinline)) static void touch_stack(void)
{
	volatile char words[2 * FAR];
	unsigned long i;

	for (i = 0; i < sizeof(words); i += PAGE / 2)
		words[i] = 1;
}

int main(int argc, char **argv)
{
	int i, fd = -1, count, depth, turns, half, whole;
	const char *kind;
	void **functions, **called;

	if (argc != 5) {
		fprintf(stderr, "usage: worst KIND COUNT DEPTH TURNS\n");
		return 2;
	}
	kind = argv[1];
	count = atoi(argv[2]);
	depth = atoi(argv[3]);
	turns = atoi(argv[4]);
	whole = !strcmp(kind, "rows") || !strncmp(kind, "dense", 5) || !strcmp(kind, "deep") ||
		!strcmp(kind, "headers") || !strcmp(kind, "handlers");
	touch_stack();
	mkdir("/tmp/worst", 0777);
	if (!strcmp(kind, "faults")) {
		faults(depth, turns);
		return 0;
	}
	if (!strcmp(kind, "regions"))
		/* The module leaves tasks without rows to the kernel. */
		map(make("headers", 0), 1);
	functions = calloc(count, sizeof(*functions));
	called = calloc(depth + 1, sizeof(*called));
	for (i = 0; i < count; i++) {
		if (!strcmp(kind, "regions")) {
			functions[i] = map_region(i);
			continue;
		}
		if (!i || strcmp(kind, "mappings")) {
			if (fd >= 0)
				close(fd);
			fd = make(kind, i);
		}
		functions[i] = map(fd, whole);
	}
	for (i = 0; i < depth; i++)
		called[i] = functions[i % count];
	called[depth] = last;
	if (!strcmp(kind, "dense_rbx")) {
		/* The first file once: a second walk cannot pass one of its frames. */
		for (i = 1; i < depth; i++)
			called[i] = functions[1 + i % (count - 1)];
		called[depth] = (char *)functions[count - 1] + LOOP_AT;
	}
	for (half = 0; half < 2; half++) {
		for (i = 0; i < turns; i++)
			((function *)called[0])(called + 1);
		/* Meanwhile the worker scans the mappings, if they are too many for a sample. */
		usleep(500000);
	}
	return 0;
}
