/* SPDX-License-Identifier: GPL-2.0-only */
/* .eh_frame cannot say where code is that is more than 2 GiB away: SFrame 3 can. */
asm(".cfi_sections .sframe");
