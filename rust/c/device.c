// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/sframe_unwind: the check of who may open it, and the reading of requests. Rust carries out
 * the commands (rust/device.rs). The device is in C because the `kernel` crate's MiscDevice has no
 * poll().
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/compat.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "internal.h"

/*
 * The sizes are part of the interface: the first field of a structure contains the size that the
 * program knows. A structure may only grow; for all else SFRAME_UNWIND_VERSION has to change.
 */
static_assert(sizeof(struct sframe_unwind_add) == 56);
static_assert(sizeof(struct sframe_unwind_extra_row) == 24);
static_assert(sizeof(struct sframe_unwind_table) == 352);
static_assert(sizeof(struct sframe_unwind_counter) == 48);
static_assert(sizeof(struct sframe_unwind_request) == 352);
static_assert(sizeof(struct sframe_unwind_region) == 208);

static bool own_regions;
module_param(own_regions, bool, 0644);
MODULE_PARM_DESC(own_regions,
		 "Lets a process without CAP_PERFMON tell how its own code is unwound");

static int device_open(struct inode *inode, struct file *file)
{
	bool is_capable = perfmon_capable();

	if (!is_capable && !READ_ONCE(own_regions))
		return -EPERM;
	/*
	 * The charged user plus 1, also if the descriptor is passed on. NULL: the descriptor is
	 * only for regions of the calling process.
	 */
	file->private_data = is_capable ?
		(void *)(1 + (uintptr_t)sfu_charged_user(file->f_cred, current->nsproxy)) : NULL;
	return 0;
}

/* A bit of `private_data`: the requests are read through this file. */
#define READS_REQUESTS 40

static void reads_requests(struct file *file)
{
	if (!test_and_set_bit(READS_REQUESTS, (unsigned long *)&file->private_data))
		atomic_inc(&sfu_request_readers);
}

static int device_release(struct inode *inode, struct file *file)
{
	if (test_bit(READS_REQUESTS, (unsigned long *)&file->private_data))
		atomic_dec(&sfu_request_readers);
	return 0;
}

static bool has_requests(void)
{
	return sfu_has_requests() || sfu_has_region_requests();
}

static ssize_t device_read(struct file *file, char __user *to, size_t len, loff_t *offset)
{
	struct sframe_unwind_request request;
	size_t done = 0;

	if (!file->private_data)
		return -EPERM;
	if (len < sizeof(request))
		return -EINVAL;
	reads_requests(file);
	while (len - done >= sizeof(request)) {
		if (!sfu_next_request(&request) && !sfu_next_region_request(&request)) {
			if (done)
				break;
			if (file->f_flags & O_NONBLOCK)
				return -EAGAIN;
			if (wait_event_interruptible(sfu_requests_wait, has_requests()))
				return -ERESTARTSYS;
			continue;
		}
		request.size = sizeof(request);
		request.version = SFRAME_UNWIND_VERSION;
		if (copy_to_user(to + done, &request, sizeof(request)))
			return done ?: -EFAULT;
		done += sizeof(request);
		cond_resched();
	}
	return done;
}

static __poll_t device_poll(struct file *file, struct poll_table_struct *wait)
{
	if (!file->private_data)
		return EPOLLERR;
	reads_requests(file);
	poll_wait(file, &sfu_requests_wait, wait);
	return has_requests() ? EPOLLIN | EPOLLRDNORM : 0;
}

static long device_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	/* The size in the command is not compared: the structure tells its own size. */
	if (_IOC_TYPE(command) != SFRAME_UNWIND_TYPE)
		return -ENOTTY;
	if (!file->private_data &&
	    (_IOC_NR(command) != SFRAME_UNWIND_NR_REGION || !READ_ONCE(own_regions)))
		return -EPERM;
	return sframe_unwind_control(_IOC_NR(command), argument,
				     (uint32_t)(uintptr_t)file->private_data - 1,
				     !file->private_data);
}

static const struct file_operations device_operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.read = device_read,
	.poll = device_poll,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

/* The mode lets every user try to open the device; device_open() decides. */
static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = KBUILD_MODNAME,
	.mode = 0666,
	.fops = &device_operations,
};

int sfu_device_start(void)
{
	return misc_register(&device);
}

void sfu_device_stop(void)
{
	misc_deregister(&device);
}
