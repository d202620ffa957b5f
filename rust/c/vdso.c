// SPDX-License-Identifier: GPL-2.0-only
/* The vDSO: where it is mapped, and which mappings are the vDSO. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched.h>

#include "internal.h"

/*
 * The vm_private_data of a vDSO's mapping, and the image of the vDSO. A task may unmap the vDSO and
 * map something else there, or another image.
 */
static uint64_t vdso_special;
static const void *vdso_image;

uint64_t sfu_vdso(void)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	uint64_t address = 0;

	if (mmap_read_lock_killable(mm))
		return 0;
	vma = vma_lookup(mm, sfu_vdso_address(mm));
	if (vma && vma->vm_start == sfu_vdso_address(mm) && !vma->vm_file && vma->vm_private_data) {
		address = vma->vm_start;
		WRITE_ONCE(vdso_image, sfu_vdso_image(mm));
		WRITE_ONCE(vdso_special, (uintptr_t)vma->vm_private_data);
	}
	mmap_read_unlock(mm);
	return address;
}

bool sfu_is_vdso(const struct vm_area_struct *vma, unsigned long start)
{
	const struct mm_struct *mm = current->mm;
	uint64_t special = (uintptr_t)READ_ONCE(vma->vm_private_data);

	return special && special == READ_ONCE(vdso_special) && start == sfu_vdso_address(mm) &&
	       sfu_vdso_image(mm) == READ_ONCE(vdso_image);
}
