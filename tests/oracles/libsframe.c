// SPDX-License-Identifier: GPL-2.0-only
/*
 * Prints a section as binutils' library reads it.
 *
 * usage: libsframe SECTION ADDRESS
 *
 * SECTION is a file with the bytes of a section whose address is ADDRESS. For each function a line
 * `function START SIZE FLAGS` is printed; for each of its rows a line `row OFFSET RULE`; and if the
 * functions are sorted, lines `pc FIRST LAST RULE` with the results of sframe_find_fre() at each of
 * its addresses. FLAGS are `repeats` and `signal`. RULE is CFA, frame pointer and return address,
 * or `none`.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sframe-api.h>
#include <sframe.h>

static sframe_decoder_ctx *decoder;
static int abi;

static _Noreturn void fail(const char *what, int error)
{
	fprintf(stderr, "libsframe: %s: %s\n", what, sframe_errmsg(error));
	exit(1);
}

static const char *name(unsigned int number)
{
	static const struct {
		int abi;
		unsigned int sp, fp;
	} names[] = {
		{ SFRAME_ABI_AARCH64_ENDIAN_BIG, 31, 29 },
		{ SFRAME_ABI_AARCH64_ENDIAN_LITTLE, 31, 29 },
		{ SFRAME_ABI_AMD64_ENDIAN_LITTLE, 7, 6 },
		{ SFRAME_ABI_S390X_ENDIAN_BIG, 15, 11 },
	};
	static char other[16];

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (names[i].abi == abi && names[i].sp == number)
			return "sp";
		if (names[i].abi == abi && names[i].fp == number)
			return "fp";
	}
	snprintf(other, sizeof(other), "r%u", number);
	return other;
}

/* The meaning of a pair of words: see "Flexible FDE" in the specification. */
static void pair(char *out, size_t size, uint32_t control, int32_t offset)
{
	const char *base = control & 1 ? name(control >> 3) : "c";

	/* A location at an offset from the CFA is printed without brackets. */
	if (control & 2 && control & 1)
		snprintf(out, size, "(%s%+d)", base, offset);
	else if (control & 2)
		snprintf(out, size, "%s%+d", base, offset);
	else
		snprintf(out, size, "%s%s%+d", control & 1 ? "" : "=", base, offset);
}

static void rule(char *out, size_t size, const sframe_frame_row_entry *row, bool flexible)
{
	char cfa[32], fp[32] = "u", ra[32] = "u";
	int fixed = sframe_decoder_get_fixed_ra_offset(decoder), error = 0;
	uint32_t type = flexible ? SFRAME_FDE_TYPE_FLEX : SFRAME_FDE_TYPE_DEFAULT;
	int32_t offset;

	if (sframe_fre_get_ra_undefined_p(decoder, row, &error)) {
		snprintf(out, size, "RA undefined");
		return;
	}
	offset = sframe_fre_get_cfa_offset(decoder, row, type, &error);
	if (error)
		fail("CFA", error);
	if (fixed)
		strcpy(ra, "f");
	if (flexible) {
		/* The library returns the words; only its CFA offset includes s390x's factor. */
		unsigned int count = (row->fre_info >> 1) & 15, next = 2;

		pair(cfa, sizeof(cfa), sframe_get_fre_udata(row, 0, &error), offset);
		for (int i = 0; i < 2 && next < count; i++) {
			uint32_t control = sframe_get_fre_udata(row, next++, &error);

			if (!control)
				continue;
			offset = i ? sframe_fre_get_fp_offset(decoder, row, type, &error)
				   : sframe_fre_get_ra_offset(decoder, row, type, &error);
			if (error)
				fail("offset of a pair", error);
			pair(i ? fp : ra, 32, control, offset);
			next++;
		}
	} else {
		snprintf(cfa, sizeof(cfa), "%s%+d",
			 sframe_fre_get_base_reg_id(row, &error) == SFRAME_BASE_REG_FP ?
				 "fp" : "sp", offset);
		error = 0;
		offset = sframe_fre_get_ra_offset(decoder, row, type, &error);
		if (!error && !fixed && (abi != SFRAME_ABI_S390X_ENDIAN_BIG ||
					 offset != SFRAME_FRE_RA_OFFSET_INVALID))
			snprintf(ra, sizeof(ra), "c%+d", offset);
		error = 0;
		offset = sframe_fre_get_fp_offset(decoder, row, type, &error);
		if (!error)
			snprintf(fp, sizeof(fp), "c%+d", offset);
	}
	error = 0;
	snprintf(out, size, "%s %s %s%s", cfa, fp, ra,
		 sframe_fre_get_ra_mangled_p(decoder, row, &error) ? "[s]" : "");
}

static char *read_all(const char *path, size_t *size)
{
	FILE *file = fopen(path, "rb");
	char *bytes = malloc(64 << 20);

	if (!file || !bytes) {
		perror(path);
		exit(1);
	}
	*size = fread(bytes, 1, 64 << 20, file);
	fclose(file);
	return bytes;
}

int main(int argc, char **argv)
{
	size_t size;
	int error = 0;
	uint64_t address;
	char *bytes;
	bool sorted;

	if (argc != 3) {
		fprintf(stderr, "usage: libsframe SECTION ADDRESS\n");
		return 2;
	}
	bytes = read_all(argv[1], &size);
	address = strtoull(argv[2], NULL, 0);
	decoder = sframe_decode(bytes, size, &error);
	if (!decoder)
		fail(argv[1], error);
	abi = sframe_decoder_get_abi_arch(decoder);
	sorted = sframe_decoder_get_flags(decoder) & SFRAME_F_FDE_SORTED;

	for (uint32_t i = 0; i < sframe_decoder_get_num_fidx(decoder); i++) {
		uint32_t rows, length;
		int64_t start;
		unsigned char info, info2 = 0;
		uint8_t block;
		bool flexible;
		char now[128], before[128] = "";
		uint64_t first = 0;
		sframe_frame_row_entry row;

		if (sframe_decoder_get_version(decoder) == SFRAME_VERSION_3) {
			if (sframe_decoder_get_funcdesc_v3(decoder, i, &rows, &length, &start,
							   &info, &info2, &block))
				fail("function", SFRAME_ERR_FDE_INVAL);
		} else {
			int32_t near;

			if (sframe_decoder_get_funcdesc_v2(decoder, i, &rows, &length, &near, &info,
							   &block))
				fail("function", SFRAME_ERR_FDE_INVAL);
			start = near;
		}
		if (sframe_decoder_get_flags(decoder) & SFRAME_F_FDE_FUNC_START_PCREL)
			start += sframe_decoder_get_offsetof_fde_start_addr(decoder, i, &error);
		flexible = (info2 & 31) == SFRAME_FDE_TYPE_FLEX;
		printf("function %#" PRIx64 " %u %s%s\n", address + start, length,
		       info & 0x10 ? "repeats" : "",
		       sframe_decoder_get_version(decoder) == SFRAME_VERSION_3 && info & 0x80 ?
		       " signal" : "");
		for (uint32_t j = 0; j < rows; j++) {
			if (sframe_decoder_get_fre(decoder, i, j, &row))
				fail("row", SFRAME_ERR_FRE_INVAL);
			rule(now, sizeof(now), &row, flexible);
			printf("row %u %s\n", row.fre_start_addr, now);
		}
		for (uint32_t at = 0; sorted && at <= length; at++) {
			if (at == length)
				now[0] = 0;
			else if (sframe_find_fre(decoder, start + at, &row))
				strcpy(now, "none");
			else
				rule(now, sizeof(now), &row, flexible);
			if (strcmp(now, before) == 0)
				continue;
			if (before[0])
				printf("pc %#" PRIx64 " %#" PRIx64 " %s\n", first,
				       address + start + at - 1, before);
			strcpy(before, now);
			first = address + start + at;
		}
	}
	return 0;
}
