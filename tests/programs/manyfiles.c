// SPDX-License-Identifier: GPL-2.0-only
/*
 * usage: manyfiles DIRECTORY COUNT
 *
 * Makes, maps, runs and deletes COUNT ELF files of a page each, one after the other. Each runs for
 * 30,000 instructions, so that a sample may be in it.
 */
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define CODE 512

/* mov %edi,%ecx; 1: dec %ecx; jnz 1b; ret */
static const unsigned char code[] = { 0x89, 0xf9, 0xff, 0xc9, 0x75, 0xfc, 0xc3 };

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

int main(int argc, char **argv)
{
	static unsigned char page[PAGE];
	Elf64_Ehdr header = {
		.e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
			     EV_CURRENT },
		.e_type = ET_DYN, .e_machine = EM_X86_64, .e_version = EV_CURRENT,
		.e_phoff = sizeof(header), .e_ehsize = sizeof(header),
		.e_phentsize = sizeof(Elf64_Phdr), .e_phnum = 1,
	};
	Elf64_Phdr load = {
		.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = PAGE, .p_memsz = PAGE,
		.p_align = PAGE,
	};
	unsigned int count = argc == 3 ? atoi(argv[2]) : 0;

	if (!count || chdir(argv[1]))
		fail("usage: manyfiles DIRECTORY COUNT");
	memcpy(page, &header, sizeof(header));
	memcpy(page + sizeof(header), &load, sizeof(load));
	memcpy(page + CODE, code, sizeof(code));
	while (count--) {
		int fd = open("file", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
		void *mapped;

		if (fd < 0 || write(fd, page, PAGE) != PAGE)
			fail("file");
		mapped = mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
		if (mapped == MAP_FAILED)
			fail("mmap");
		((void (*)(unsigned int))((char *)mapped + CODE))(15000);
		munmap(mapped, PAGE);
		close(fd);
		unlink("file");
	}
	return 0;
}
