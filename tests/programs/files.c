// SPDX-License-Identifier: GPL-2.0-only
/*
 * files add PROGRAM SECTION SECONDS [SEED] - tells /dev/sframe_unwind, as root, of new copies of
 * PROGRAM for so long: with the rows of SECTION, with a part of them, or with none; maps and
 * removes some. Prints how many were added, and how many requests were refused. Refusals are errors
 * only if the device does not document them.
 * files list - prints the highest number of a file that is known: about as many files there were
 * since the load.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sframe_unwind.h"

#define KEPT 32

static void *read_file(const char *path, size_t *size)
{
	int file = open(path, O_RDONLY);
	struct stat status;
	void *data;

	if (file < 0 || fstat(file, &status))
		return NULL;
	*size = status.st_size;
	data = malloc(*size + 1);
	if (!data || read(file, data, *size) != (ssize_t)*size)
		return NULL;
	close(file);
	return data;
}

static int list(int device)
{
	struct sframe_unwind_table table = {
		.size = sizeof(table), .version = SFRAME_UNWIND_VERSION,
	};
	unsigned long last = 0;

	while (!ioctl(device, SFRAME_UNWIND_LIST, &table)) {
		last = table.number;
		table = (struct sframe_unwind_table){
			.size = sizeof(table), .version = SFRAME_UNWIND_VERSION, .number = last,
		};
	}
	printf("%lu\n", last);
	return errno != ENOENT;
}

int main(int argc, char **argv)
{
	unsigned long added = 0, refused = 0;
	size_t program_size, section_size;
	int kept[KEPT];
	int device = open("/dev/sframe_unwind", O_RDWR | O_NONBLOCK);

	if (device < 0) {
		perror("/dev/sframe_unwind");
		return 1;
	}
	if (argc > 1 && !strcmp(argv[1], "list"))
		return list(device);
	if (argc < 5)
		return 2;
	char *program = read_file(argv[2], &program_size);
	char *section = read_file(argv[3], &section_size);
	time_t end = time(NULL) + atoi(argv[4]);

	if (!program || !section)
		return 1;
	srandom(argc > 5 ? atoi(argv[5]) : 1);
	memset(kept, -1, sizeof(kept));
	do {
		int *slot = &kept[random() % KEPT];
		struct sframe_unwind_add add = {
			.size = sizeof(add), .version = SFRAME_UNWIND_VERSION,
			.user = random() % 3 * 1000,
		};
		struct stat state;

		if (*slot >= 0)
			close(*slot);
		*slot = memfd_create("file", 0);
		if (*slot < 0)
			continue;
		if (write(*slot, program, program_size) != (ssize_t)program_size)
			continue;
		if (fstat(*slot, &state))
			continue;
		add.file = *slot;
		add.changed = state.st_ctim.tv_sec;
		add.changed_nsec = state.st_ctim.tv_nsec;
		add.section = (unsigned long)section;
		add.section_len = random() % 8 ? section_size :
				  random() % 2 ? random() % section_size : 0;
		if (!ioctl(device, SFRAME_UNWIND_ADD, &add)) {
			added++;
		} else {
			refused++;
			switch (errno) {
			case EBADMSG: case EFBIG: case ENOSPC: case ENOMEM:
			case ESTALE: case EIO: case ENOEXEC:
			case EFAULT: case EOPNOTSUPP: case EBUSY: case EINTR:
				break;
			default:
				perror("SFRAME_UNWIND_ADD");
				return 1;
			}
		}
		if (random() % 4 == 0) {
			char *code = mmap(NULL, program_size, PROT_READ | PROT_EXEC, MAP_PRIVATE,
					  *slot, 0);

			if (code != MAP_FAILED)
				munmap(code, program_size);
		}
		if (random() % 4 == 0) {
			struct sframe_unwind_add remove = {
				.size = sizeof(remove), .version = SFRAME_UNWIND_VERSION,
				.file = *slot,
			};

			(void)!ioctl(device, SFRAME_UNWIND_REMOVE, &remove);
		}
	} while (time(NULL) < end);
	printf("%lu %lu\n", added, refused);
	return 0;
}
