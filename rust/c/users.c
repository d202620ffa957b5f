// SPDX-License-Identifier: GPL-2.0-only
/* The charged user: the user whose quotas and allowances apply to the work for a task. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/user_namespace.h>

#include "internal.h"

uint32_t sfu_charged_user(const struct cred *cred)
{
	const struct user_namespace *space = cred->user_ns;
	kuid_t user = cred->uid;
	int levels = 33;

	/*
	 * The user who made the outermost namespace can act as any of its users. Root makes
	 * namespaces for others.
	 */
	for (; space != &init_user_ns && levels; space = space->parent, levels--)
		if (!uid_eq(space->owner, GLOBAL_ROOT_UID))
			user = space->owner;
	if (!uid_eq(user, GLOBAL_ROOT_UID))
		return from_kuid(&init_user_ns, user);
	/*
	 * Root in a container has the quota of a user. A user who may load modules can reload this
	 * module without limits.
	 */
	return cred->user_ns == &init_user_ns && (cap_raised(cred->cap_effective, CAP_SYS_ADMIN) ||
						  cap_raised(cred->cap_effective, CAP_SYS_MODULE)) ?
	       0 : SFU_CONTAINED_ROOT;
}

unsigned int sfu_number_of_user(uint32_t user, unsigned int count)
{
	return user ? 1 + siphash_1u32(user, &sfu_secret) % (count - 1) : 0;
}
