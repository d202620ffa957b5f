/* SPDX-License-Identifier: GPL-2.0-only */
/* What sframe.h needs of a header of binutils that libsframe-dev does not come with. */
#define ATTRIBUTE_PACKED __attribute__((packed))
#define ATTRIBUTE_UNUSED __attribute__((unused))
