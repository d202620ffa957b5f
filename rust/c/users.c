// SPDX-License-Identifier: GPL-2.0-only
/*
 * The charged user: the user, or the container, whose quotas and allowances apply to the work for a
 * task. See Documentation/decisions/containers.rst.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/cgroup.h>
#include <linux/cred.h>
#include <linux/nsproxy.h>
#include <linux/sched/task.h>
#include <linux/user_namespace.h>

#include "internal.h"

/* `is_administrator` of tools/sframectl/src/watch/file.rs is the same rule. */
static bool is_administrator(const struct cred *cred)
{
	/* A user who may load modules can reload this module without limits. */
	return cred->user_ns == &init_user_ns && uid_eq(cred->uid, GLOBAL_ROOT_UID) &&
	       (cap_raised(cred->cap_effective, CAP_SYS_ADMIN) ||
		cap_raised(cred->cap_effective, CAP_SYS_MODULE));
}

/*
 * The number of the container: of the cgroup namespace that an administrator has made for it. 0 if
 * there is none. Each user may make any number of other cgroup namespaces, in a user namespace.
 */
static uint32_t container_number(const struct nsproxy *spaces)
{
	const struct cgroup_namespace *space = spaces ? spaces->cgroup_ns : NULL;

	if (!space || space == init_task.nsproxy->cgroup_ns || space->user_ns != &init_user_ns)
		return 0;
	return space->ns.inum;
}

uint32_t sfu_charged_user(const struct cred *cred, const struct nsproxy *spaces)
{
	const struct user_namespace *space = cred->user_ns;
	uint32_t number = container_number(spaces);
	kuid_t user = cred->uid;
	int levels = 33;

	if (is_administrator(cred))
		return 0;
	if (number)
		return number;
	/*
	 * The user who made the outermost namespace can act as any of its users. Root makes
	 * namespaces for others.
	 */
	for (; space != &init_user_ns && levels; space = space->parent, levels--)
		if (!uid_eq(space->owner, GLOBAL_ROOT_UID))
			user = space->owner;
	if (!uid_eq(user, GLOBAL_ROOT_UID))
		return from_kuid(&init_user_ns, user);
	return SFU_CONTAINED_ROOT;
}

unsigned int sfu_number_of_user(uint32_t user, unsigned int count)
{
	return user ? 1 + siphash_1u32(user, &sfu_secret) % (count - 1) : 0;
}
