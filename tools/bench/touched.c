// SPDX-License-Identifier: GPL-2.0-only
/*
 * A plugin of QEMU: counts the lines of cache (64 bytes) that each call touches, of the calls that
 * probe/count.c measures. A call lasts from one of the probe's reads of the time stamp counter to
 * the next. The guest has one CPU, and its kernel's modules are at MODULES and above.
 *
 * Options: label=FILE, whose content is the label of a call; out=FILE, which gets a line for each
 * call: the label, and the lines of user memory, of the kernel's memory, and of the kernel's code.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <qemu-plugin.h>

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

#define KERNEL (1ULL << 63)
#define MODULES 0xffffffffc0000000
#define LINES (1 << 16)

enum kind { USER, DATA, CODE, KINDS };

/* The first and the last line of a block of code. */
struct block {
	uint64_t first, last;
};

/* Lines that the present call has touched, at a hash or behind it. Others are of earlier calls. */
static struct {
	uint64_t line, call;
} seen[LINES];
static uint64_t call, count[KINDS];
/* The instruction that begins each call: the first one that was met. */
static uint64_t begin;
static int is_open, label = -1;
static FILE *out;

static void touch(uint64_t line, enum kind kind)
{
	uint64_t at = line * 0x9e3779b97f4a7c15 >> 48;

	while (seen[at].call == call) {
		if (seen[at].line == line)
			return;
		at = (at + 1) % LINES;
	}
	/* Full tables would have no end. */
	if (count[USER] + count[DATA] + count[CODE] == LINES / 2)
		return;
	seen[at].line = line;
	seen[at].call = call;
	count[kind]++;
}

static void access_memory(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t address,
			  void *data)
{
	if (is_open)
		touch(address / 64, address < KERNEL ? USER : DATA);
}

static void run_block(unsigned int cpu, void *data)
{
	const struct block *block = data;

	for (uint64_t line = block->first; is_open && line <= block->last; line++)
		touch(line, CODE);
}

static void read_time(unsigned int cpu, void *data)
{
	uint64_t at = (uintptr_t)data;
	char name[64] = "";

	if (!begin)
		begin = at;
	if (at == begin) {
		memset(count, 0, sizeof(count));
		call++;
		is_open = 1;
	} else if (is_open) {
		is_open = 0;
		if (pread(label, name, sizeof(name) - 1, 0) > 0)
			fprintf(out, "%.*s %lu %lu %lu\n", (int)strcspn(name, "\n"), name,
				count[USER], count[DATA], count[CODE]);
	}
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t i, all = qemu_plugin_tb_n_insns(tb);
	struct block *block;

	if (!all || qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0)) < KERNEL)
		return;
	/* Never freed: the block may be in use for as long as the guest is. */
	block = malloc(sizeof(*block));
	if (!block)
		abort();
	for (i = 0; i < all; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t at = qemu_plugin_insn_vaddr(insn);
		uint8_t bytes[2];

		if (!i)
			block->first = at / 64;
		block->last = (at + qemu_plugin_insn_size(insn) - 1) / 64;
		qemu_plugin_register_vcpu_mem_cb(insn, access_memory, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, NULL);
		if (at >= MODULES && qemu_plugin_insn_data(insn, bytes, 2) == 2 &&
		    bytes[0] == 0x0f && bytes[1] == 0x31)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, read_time,
							       QEMU_PLUGIN_CB_NO_REGS,
							       (void *)(uintptr_t)at);
	}
	qemu_plugin_register_vcpu_tb_exec_cb(tb, run_block, QEMU_PLUGIN_CB_NO_REGS, block);
}

static void ended(qemu_plugin_id_t id, void *data)
{
	fclose(out);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "label=", 6))
			label = open(argv[i] + 6, O_RDONLY);
		else if (!strncmp(argv[i], "out=", 4))
			out = fopen(argv[i] + 4, "w");
	}
	if (label < 0 || !out) {
		fprintf(stderr, "touched: label=FILE and out=FILE have to be files\n");
		return 1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, ended, NULL);
	return 0;
}
