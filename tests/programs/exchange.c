// SPDX-License-Identifier: GPL-2.0-only
/*
 * exchange FILE FILE - maps the code of two files at one address in turn, and computes in a
 * function that this code has called. The files are made from this source, with FRAME, the size of
 * the frames of their functions. Where a frame of 136 bytes would have its return address, the
 * larger frame has the same one, so a walk by the other file's rows goes on for a while.
 */
#define _GNU_SOURCE
#ifdef FRAME
#define TEXT(number) #number
#define NUMBER(number) TEXT(number)

__asm__(".globl calls\n"
	"calls:\n"
	".cfi_startproc\n"
	"subq $" NUMBER(FRAME) ", %rsp\n"
	".cfi_adjust_cfa_offset " NUMBER(FRAME) "\n"
	"movq " NUMBER(FRAME) "(%rsp), %rax\n"
	"movq %rax, 136(%rsp)\n"
	"call *%rdi\n"
	"addq $" NUMBER(FRAME) ", %rsp\n"
	".cfi_adjust_cfa_offset -" NUMBER(FRAME) "\n"
	"ret\n"
	".cfi_endproc\n");
#else
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile unsigned long work;

__attribute__((noipa)) static void computes(void)
{
	for (int i = 0; i < 300000; i++)
		work += i;
}

/* The code of a file: its size and offset, in bytes, and the entry point's distance from it. */
struct code {
	int file;
	unsigned long size, offset, entry;
};

static int find(const char *path, struct code *code)
{
	Elf64_Ehdr header;
	Elf64_Phdr segment;

	code->file = open(path, O_RDONLY);
	if (pread(code->file, &header, sizeof(header), 0) != sizeof(header))
		return -1;
	for (int i = 0; i < header.e_phnum; i++) {
		if (pread(code->file, &segment, sizeof(segment),
			  header.e_phoff + i * sizeof(segment)) != sizeof(segment))
			return -1;
		if (segment.p_type == PT_LOAD && segment.p_flags & PF_X) {
			code->size = segment.p_memsz;
			code->offset = segment.p_offset;
			code->entry = header.e_entry - segment.p_vaddr;
			return 0;
		}
	}
	return -1;
}

int main(int argc, char **argv)
{
	struct code codes[2];
	char *place = NULL;

	if (argc != 3 || find(argv[1], &codes[0]) || find(argv[2], &codes[1])) {
		fprintf(stderr, "usage: exchange FILE FILE\n");
		return 2;
	}
	for (unsigned int turn = 0;; turn++) {
		const struct code *code = &codes[turn & 1];

		place = mmap(place, code->size, PROT_READ | PROT_EXEC,
			     MAP_PRIVATE | (place ? MAP_FIXED : 0), code->file, code->offset);
		if (place == MAP_FAILED)
			return 1;
		((void (*)(void (*)(void)))(place + code->entry))(computes);
	}
}
#endif
