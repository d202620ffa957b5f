// SPDX-License-Identifier: GPL-2.0-only
/*
 * The C side of helpers.h: the only place that knows layouts of the kernel's structures.
 *
 * One function does one thing of the kernel that the `kernel` crate has no face for. What is
 * decided on it is decided in Rust.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/ftrace.h>
#include <linux/irq_work.h>
#include <linux/kprobes.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/pagemap.h>
#include <linux/percpu.h>
#include <linux/perf_event.h>
#include <linux/sched/mm.h>
#include <linux/sched/task_stack.h>
#include <linux/srcu.h>
#include <linux/uaccess.h>
#include <linux/unwind_user.h>
#include <linux/uprobes.h>
#include <linux/userfaultfd_k.h>
#include <linux/workqueue.h>

#include "helpers.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* ---- Hooks ---- */

/* In C because the `kernel` crate has no parameters that can be written at run time. */
static bool enabled = true;
module_param(enabled, bool, 0644);
MODULE_PARM_DESC(enabled, "Unwind user stacks (off: the kernel's own chains from the next sample on)");

static DEFINE_PER_CPU(uint64_t[SFU_COUNTERS], counters);

static unsigned long immediate_address, deferred_address;
static struct srcu_struct deferred_walks;

/* ftrace calls at the function's entry, or a few bytes behind it where there is an ENDBR. */
static bool is_entry_of(unsigned long ip, unsigned long function)
{
	return function && ip - function < 16;
}

/*
 * What is left to the kernel: tasks without user memory or with other stacks than ours, and
 * guests, whose memory is not the task's.
 */
static bool is_ours(const struct pt_regs *regs)
{
	return current->mm && !(current->flags & (PF_KTHREAD | PF_USER_WORKER | PF_VCPU)) &&
	       user_mode((struct pt_regs *)regs) && user_64bit_mode((struct pt_regs *)regs) &&
	       !(regs->flags & X86_VM_MASK);
}

/*
 * In exec, where memory is the new program's already and the registers are still the old one's. Where the
 * code starts is set shortly before they are.
 */
static bool is_between_programs(void)
{
	return current->in_execve && !current->mm->start_code;
}

/* Replaces perf_callchain_user where there is no user stack. */
static void tell_nothing(struct perf_callchain_entry_ctx *entry, struct pt_regs *regs)
{
}

/*
 * A few verdicts per CPU: whether a task has rows anywhere, in one state of its mappings. `id` is
 * written last and taken away first, so that an NMI in between finds nothing rather than a mixture;
 * it writes its own entry whole.
 */
#define VERDICTS 8

struct verdict {
	uint64_t id;
	uint64_t sequence;
	bool verdict;
};

static DEFINE_PER_CPU(struct verdict[VERDICTS], verdicts);

void sfu_keep_verdict(uint64_t id, uint64_t sequence, bool verdict)
{
	struct verdict *entry = this_cpu_ptr(&verdicts[id % VERDICTS]);

	WRITE_ONCE(entry->id, 0);
	barrier();
	WRITE_ONCE(entry->sequence, sequence);
	WRITE_ONCE(entry->verdict, verdict);
	barrier();
	WRITE_ONCE(entry->id, id);
}

/*
 * Looks at the task's mappings, and reads its memory: a fault in there may ask for a stack again, which
 * is then left to the kernel.
 */
static noinline bool look_for_rows(unsigned long ip, unsigned long parent_ip)
{
	int bit = ftrace_test_recursion_trylock(ip, parent_ip);
	bool wanted;

	if (bit < 0)
		return false;
	wanted = sframe_unwind_wanted();
	ftrace_test_recursion_unlock(bit);
	return wanted;
}

/* Whether the current task's stack is walked here. Preemption off. */
static bool is_wanted(unsigned long ip, unsigned long parent_ip)
{
	const struct verdict *entry;
	uint64_t id, sequence;
	bool wanted;

	sfu_mappings_version(&id, &sequence);
	entry = this_cpu_ptr(&verdicts[id % VERDICTS]);
	/* While the mappings are being changed, the verdict on what they were. */
	if (READ_ONCE(entry->id) == id && READ_ONCE(entry->sequence) == (sequence & ~1ull))
		wanted = READ_ONCE(entry->verdict);
	else
		wanted = look_for_rows(ip, parent_ip);
	if (!wanted)
		this_cpu_inc(counters[SFU_LEFT_TO_KERNEL]);
	return wanted;
}

/* NMI, IRQ or task. Leaving the instruction pointer as it is runs the kernel's own function. */
static void notrace on_entry(unsigned long ip, unsigned long parent_ip, struct ftrace_ops *ops,
			     struct ftrace_regs *fregs)
{
	const struct pt_regs *regs;
	unsigned long target;
	bool at_once = is_entry_of(ip, immediate_address);

	if (!READ_ONCE(enabled))
		return;
	if (at_once) {
		regs = (const struct pt_regs *)ftrace_regs_get_argument(fregs, 1);
		target = (unsigned long)sframe_unwind_immediate;
	} else if (is_entry_of(ip, deferred_address)) {
		regs = task_pt_regs(current);
		target = (unsigned long)sframe_unwind_deferred;
	} else {
		return;
	}

	preempt_disable_notrace();
	if (is_ours(regs)) {
		if (at_once && is_between_programs()) {
			this_cpu_inc(counters[SFU_IN_EXEC]);
			ftrace_regs_set_instruction_pointer(fregs, (unsigned long)tell_nothing);
		} else if (is_wanted(ip, parent_ip)) {
			ftrace_regs_set_instruction_pointer(fregs, target);
		}
	}
	preempt_enable_notrace();
}

static struct ftrace_ops ops = {
	.func = on_entry,
	/* No other IPMODIFY user may come in between; ftrace_enabled cannot be switched off. */
	.flags = FTRACE_OPS_FL_IPMODIFY | FTRACE_OPS_FL_PERMANENT,
};

/*
 * kallsyms_lookup_name() is not for modules; a kprobe knows the address. It is never armed, so to
 * take it away needs no memory: if that fails the kernel keeps a probe that is no more.
 */
static unsigned long address_of(const char *function)
{
	struct kprobe probe = { .symbol_name = function, .flags = KPROBE_FLAG_DISABLED };
	unsigned long address;

	if (register_kprobe(&probe))
		return 0;
	address = (unsigned long)probe.addr;
	unregister_kprobe(&probe);
	return address;
}

static int filter(const char *function, unsigned long *address, bool reset)
{
	int ret;

	*address = address_of(function);
	ret = *address ? ftrace_set_filter(&ops, (unsigned char *)function, strlen(function), reset) : -ENOENT;
	if (ret)
		pr_err("cannot hook %s: %s (%d)\n", function,
		       *address ? "ftrace does not know it" : "this kernel has no such function", ret);
	return ret;
}

int sfu_hook_install(bool immediate, bool deferred)
{
	int ret = init_srcu_struct(&deferred_walks);

	if (ret)
		return ret;
	if (immediate)
		ret = filter("perf_callchain_user", &immediate_address, true);
	if (!ret && deferred)
		ret = filter("unwind_user", &deferred_address, !immediate);
	if (!ret && (immediate || deferred)) {
		ret = register_ftrace_function(&ops);
		if (ret == -EBUSY)
			pr_err("cannot hook: another module or a live patch already replaces perf_callchain_user or unwind_user (%d)\n", ret);
		else if (ret)
			pr_err("cannot hook: ftrace refuses (%d)\n", ret);
	}
	if (ret) {
		ftrace_free_filter(&ops);
		cleanup_srcu_struct(&deferred_walks);
	}
	return ret;
}

void sfu_hook_remove(void)
{
	WRITE_ONCE(enabled, false);
	if (immediate_address || deferred_address) {
		/*
		 * Waits for tasks that were preempted in a walk and for CPUs that are in one. If
		 * ftrace has shut itself down the hook stays in, and this code must stay as well.
		 */
		if (WARN(unregister_ftrace_function(&ops), "sframe_unwind: ftrace will not let go of the hook; the module stays\n"))
			for (;;)
				schedule_timeout_uninterruptible(MAX_SCHEDULE_TIMEOUT);
	}
	/* Deferred walks may have slept on; after that, their last instructions. */
	synchronize_srcu(&deferred_walks);
	synchronize_rcu_tasks();
	ftrace_free_filter(&ops);
	cleanup_srcu_struct(&deferred_walks);
}

/* ---- Calls ---- */

static void begin(const struct pt_regs *regs, uint32_t context, struct sfu_call *call)
{
	call->context = context;
	call->pc = regs->ip;
	call->sp = regs->sp;
	call->fp = regs->bp;
	call->registers = regs;
	call->is_probed = current->utask || mm_flags_test(MMF_HAS_UPROBES, current->mm);
}

void sfu_immediate_enter(void *entry, const void *regs, struct sfu_call *call)
{
	struct perf_callchain_entry_ctx *to = entry;

	begin(regs, in_nmi() ? SFU_NMI : in_task() ? SFU_TASK : SFU_IRQ, call);
	call->room = &to->entry->ip[to->entry->nr];
	call->left = to->nr < to->max_stack && !to->contexts_maxed ? to->max_stack - to->nr : 0;
}

void sfu_immediate_leave(void *entry, unsigned int count)
{
	struct perf_callchain_entry_ctx *to = entry;

	to->nr += count;
	to->entry->nr += count;
}

int sfu_deferred_enter(void *trace, unsigned int max_entries, struct sfu_call *call)
{
	struct unwind_stacktrace *to = trace;

	begin(task_pt_regs(current), SFU_DEFERRED, call);
	to->nr = 0;
	call->room = (uint64_t *)to->entries;
	call->left = max_entries;
	return srcu_read_lock(&deferred_walks);
}

void sfu_deferred_leave(void *trace, unsigned int count, int token)
{
	((struct unwind_stacktrace *)trace)->nr = count;
	srcu_read_unlock(&deferred_walks, token);
}

/* ---- Registers ---- */

bool sfu_in_sigreturn(const void *regs)
{
	return ((const struct pt_regs *)regs)->orig_ax == __NR_rt_sigreturn;
}

bool sfu_register(const void *regs, unsigned int number, uint64_t *value)
{
	/* In DWARF's order, of the psABI. */
	static const unsigned char places[] = {
		offsetof(struct pt_regs, ax),  offsetof(struct pt_regs, dx),
		offsetof(struct pt_regs, cx),  offsetof(struct pt_regs, bx),
		offsetof(struct pt_regs, si),  offsetof(struct pt_regs, di),
		offsetof(struct pt_regs, bp),  offsetof(struct pt_regs, sp),
		offsetof(struct pt_regs, r8),  offsetof(struct pt_regs, r9),
		offsetof(struct pt_regs, r10), offsetof(struct pt_regs, r11),
		offsetof(struct pt_regs, r12), offsetof(struct pt_regs, r13),
		offsetof(struct pt_regs, r14), offsetof(struct pt_regs, r15),
	};

	if (number >= ARRAY_SIZE(places))
		return false;
	*value = *(const unsigned long *)(regs + places[number]);
	return true;
}

/* ---- Uprobes ---- */

/* More than the kernel lets a task have. */
#define URETPROBES 128

/*
 * All of this is written by the task itself, in an order that lets an interrupt see it whole, and
 * freed by it too, or after a grace period.
 */
uint64_t sfu_in_line(uint64_t pc)
{
	const struct uprobe_task *utask = READ_ONCE(current->utask);
	uint64_t offset;

	if (!utask || !READ_ONCE(utask->active_uprobe))
		/* The breakpoint was met, and what will go back behind it is yet to come. */
		return test_thread_flag(TIF_UPROBE) ? pc - UPROBE_SWBP_INSN_SIZE : pc;
	offset = pc - READ_ONCE(utask->xol_vaddr);
	return offset < UPROBE_XOL_SLOT_BYTES ? READ_ONCE(utask->vaddr) + offset : pc;
}

bool sfu_taken_by_uretprobe(uint64_t slot, uint64_t *address)
{
	const struct uprobe_task *utask = READ_ONCE(current->utask);
	const struct return_instance *instance;
	bool found = false;
	int limit = URETPROBES;

	if (!utask)
		return false;
	rcu_read_lock();
	for (instance = READ_ONCE(utask->return_instances); instance && limit; limit--) {
		if (READ_ONCE(instance->stack) == slot) {
			*address = READ_ONCE(instance->orig_ret_vaddr);
			found = true;
			break;
		}
		instance = READ_ONCE(instance->next);
	}
	rcu_read_unlock();
	return found;
}

/* ---- User memory ---- */

/*
 * Whether this may be in the midst of a change of address spaces, which no interrupt is let into: then
 * the memory that is there may be another task's, and copy_from_user_nofault() alone finds out.
 */
static bool may_be_changing(void)
{
	return in_nmi() || (!in_hardirq() && irqs_disabled());
}

static noinline bool is_readable(uint64_t address)
{
	uint8_t byte;

	return !copy_from_user_nofault(&byte, (const void __user *)address, sizeof(byte));
}

bool sfu_peek_enter(uint64_t address)
{
	pagefault_disable();
	return !may_be_changing() || is_readable(address);
}

void sfu_peek_leave(void)
{
	pagefault_enable();
}

int sfu_read_user(void *to, uint64_t address, unsigned int len)
{
	return copy_from_user_nofault(to, (const void __user *)address, len) ? -EFAULT : 0;
}

int sfu_fault_in(uint64_t address, unsigned int len)
{
	size_t left;

	/*
	 * A fault may last for ever (userfaultfd, FUSE). With the module held, rmmod says EBUSY at
	 * once instead of waiting for it.
	 */
	if (!try_module_get(THIS_MODULE))
		return -ESHUTDOWN;
	pagefault_enable();
	left = fault_in_readable((const char __user *)address, len);
	pagefault_disable();
	module_put(THIS_MODULE);
	return left ? -EFAULT : 0;
}

/*
 * Pages that a walk in IRQ or NMI missed, and files that it met and nothing is known of. A slot is
 * taken by its `state`, so that any context can put in while the worker takes out; a full table
 * forgets.
 */
#define MISSING_SLOTS 64
/* How many of them may be of one user but root. */
#define MISSING_SLOTS_OF_USER 32
#define MISSING_TRIES 10

enum { SLOT_FREE, SLOT_BUSY, SLOT_READY };

#define WHAT_FILE 1

static struct missing {
	atomic_t state;
	unsigned int tries;
	uint32_t user;
	pid_t pid;
	struct mm_struct *mm;
	/* The address of the page, or of one of the file's and WHAT_FILE. */
	unsigned long what;
} missing[MISSING_SLOTS];

static struct workqueue_struct *workqueue;
static struct delayed_work page_work, file_work;

static void kick_pages(struct irq_work *work)
{
	mod_delayed_work(workqueue, &page_work, 0);
}

static void kick_files(struct irq_work *work)
{
	mod_delayed_work(workqueue, &file_work, 0);
}

static struct irq_work page_kick = IRQ_WORK_INIT(kick_pages);
static struct irq_work file_kick = IRQ_WORK_INIT(kick_files);

static uint32_t who(void)
{
	return from_kuid(&init_user_ns, current_uid());
}

/* In two functions, of which each takes little of the stack. 0: it may be put in. */
static noinline int is_queued(unsigned long what)
{
	uint32_t user = who();
	int left = user ? MISSING_SLOTS_OF_USER : MISSING_SLOTS;
	const struct missing *slot;

	for (slot = missing; slot < missing + MISSING_SLOTS; slot++) {
		if (atomic_read(&slot->state) != SLOT_READY)
			continue;
		if (READ_ONCE(slot->mm) == current->mm && READ_ONCE(slot->what) == what)
			return 1;
		left -= READ_ONCE(slot->user) == user;
	}
	return left > 0 ? 0 : -ENOSPC;
}

static noinline bool queue(unsigned long what)
{
	struct missing *slot;

	for (slot = missing; slot < missing + MISSING_SLOTS; slot++) {
		if (atomic_cmpxchg(&slot->state, SLOT_FREE, SLOT_BUSY) != SLOT_FREE)
			continue;
		mmgrab(current->mm);
		slot->mm = current->mm;
		slot->what = what;
		slot->user = who();
		slot->pid = task_tgid_nr(current);
		slot->tries = 0;
		atomic_set_release(&slot->state, SLOT_READY);
		irq_work_queue(what & WHAT_FILE ? &file_kick : &page_kick);
		return true;
	}
	return false;
}

static bool queue_once(unsigned long what)
{
	int queued;

	if (!current->mm || what >= TASK_SIZE_MAX)
		return false;
	queued = is_queued(what);
	return queued ? queued > 0 : queue(what);
}

bool sfu_queue_fault_in(uint64_t address)
{
	return queue_once(address & PAGE_MASK);
}

bool sfu_queue_file(uint64_t address)
{
	return queue_once((address & PAGE_MASK) | WHAT_FILE);
}

/*
 * File systems whose reads end by themselves: a worker that waits in FUSE or for a server cannot
 * be stopped by anyone. Pages of other files come in when a task needs them itself.
 */
static bool ends_by_itself(struct vm_area_struct *vma)
{
	if (!vma->vm_file || (vma->vm_flags & (VM_IO | VM_PFNMAP)) || userfaultfd_armed(vma))
		return false;
	switch (file_inode(vma->vm_file)->i_sb->s_magic) {
	case BTRFS_SUPER_MAGIC:
	case EROFS_SUPER_MAGIC_V1:
	case EXT4_SUPER_MAGIC:
	case F2FS_SUPER_MAGIC:
	case SQUASHFS_MAGIC:
	case TMPFS_MAGIC:
	case XFS_SUPER_MAGIC:
		return true;
	}
	return false;
}

static void fault_in_page(struct vm_area_struct *vma, const struct missing *slot)
{
	bool unlocked = false;

	if (vma && ends_by_itself(vma))
		fixup_user_fault(slot->mm, slot->what, FAULT_FLAG_REMOTE, &unlocked);
	mmap_read_unlock(slot->mm);
}

/*
 * What may be read of a user's files in a while, by time: else one whose files are large would have
 * the worker alone. Users that share an entry share the time.
 */
#define USERS 64
#define WHILE (10 * HZ)

static struct {
	unsigned long since;
	unsigned long spent;
} users[USERS];

static void look_at_file(struct vm_area_struct *vma, const struct missing *slot)
{
	unsigned long started = jiffies;
	typeof(&users[0]) user = &users[slot->user % USERS];
	struct sfu_table_state met = {
		.user = slot->user, .owner = slot->user, .pid = slot->pid,
	};
	static char path[SFU_PATH];
	struct file *file = NULL;
	bool may_read = false;

	if (vma && vma->vm_file && (vma->vm_flags & VM_EXEC) &&
	    S_ISREG(file_inode(vma->vm_file)->i_mode)) {
		file = get_file(vma->vm_file);
		may_read = ends_by_itself(vma);
		met.start = vma->vm_start;
		met.end = vma->vm_end;
	}
	mmap_read_unlock(slot->mm);
	if (!file)
		return;
	if (time_after(jiffies, user->since + WHILE)) {
		user->since = jiffies;
		user->spent = 0;
	}
	/* The one worker that looks at files has room for the one path. */
	met.path = d_path(file_user_path(file), path, sizeof(path));
	if (IS_ERR(met.path))
		met.path = NULL;
	if (user->spent < WHILE / 10)
		sframe_unwind_meet(file, &met, may_read);
	user->spent += jiffies - started;
	fput(file);
}

/* -EAGAIN if the task's mappings were locked: never wait for them, their owner may sleep long. */
static int serve(const struct missing *slot)
{
	struct vm_area_struct *vma;
	int ret = 0;

	if (!mmget_not_zero(slot->mm))
		return 0;
	if (mmap_read_trylock(slot->mm)) {
		vma = vma_lookup(slot->mm, slot->what & PAGE_MASK);
		if (slot->what & WHAT_FILE)
			look_at_file(vma, slot);
		else
			fault_in_page(vma, slot);
	} else {
		ret = -EAGAIN;
	}
	/* Its last user may wait for a file system that hangs. */
	mmput_async(slot->mm);
	return ret;
}

static void serve_all(struct work_struct *work)
{
	struct delayed_work *own = to_delayed_work(work);
	bool again = false;
	int i;

	for (i = 0; i < MISSING_SLOTS; i++) {
		struct missing *slot = &missing[i];

		if (atomic_read_acquire(&slot->state) != SLOT_READY || (slot->what & WHAT_FILE) != (own == &file_work))
			continue;
		if (serve(slot) && ++slot->tries < MISSING_TRIES) {
			again = true;
			continue;
		}
		atomic_set(&slot->state, SLOT_BUSY);
		mmdrop(slot->mm);
		WRITE_ONCE(slot->mm, NULL);
		atomic_set_release(&slot->state, SLOT_FREE);
	}
	/* If more was put in meanwhile, at once. */
	if (again)
		queue_delayed_work(workqueue, own, HZ / 50 + 1);
}

int sfu_faults_start(void)
{
	INIT_DELAYED_WORK(&page_work, serve_all);
	INIT_DELAYED_WORK(&file_work, serve_all);
	/*
	 * A page need not wait for a file, nor for one more that is met meanwhile: a work that runs and is
	 * queued again is two to a workqueue. So as many as there may be.
	 */
	workqueue = alloc_workqueue("sframe_unwind", WQ_UNBOUND, 0);
	return workqueue ? 0 : -ENOMEM;
}

void sfu_faults_stop(void)
{
	int i;

	irq_work_sync(&page_kick);
	irq_work_sync(&file_kick);
	cancel_delayed_work_sync(&page_work);
	cancel_delayed_work_sync(&file_work);
	destroy_workqueue(workqueue);
	for (i = 0; i < MISSING_SLOTS; i++)
		if (atomic_read(&missing[i].state) == SLOT_READY)
			mmdrop(missing[i].mm);
}

/* ---- Mappings ---- */

/* How many mappings a file's first one may lie before the one asked for. */
#define HEAD_DISTANCE 16

/*
 * What the tree holds at `address`: a mapping or a gap, and from where to where that reaches.
 *
 * Always from the root down. mas_find() and mas_prev() go by way of a node's parent, and try again
 * for as long as that one is out of the tree; here the writer that is about to put it right may be
 * the very task that was interrupted, and never gets to it. From the root down no node is met that
 * is out of the tree: it is taken out before it is marked so.
 */
static struct vm_area_struct *mapping_at(struct mm_struct *mm, unsigned long address,
					 unsigned long *first, unsigned long *last)
{
	MA_STATE(mas, &mm->mm_mt, address, address);
	struct vm_area_struct *vma = mas_walk(&mas);

	*first = mas.index;
	*last = mas.last;
	return vma;
}

/*
 * Reads what is needed of the mapping that `vma` stands for. It may be freed and used anew
 * meanwhile (its memory stays a VMA's under RCU), so what comes out must be proved by the caller.
 */
static void read_mapping(struct mm_struct *mm, struct vm_area_struct *vma, unsigned long first,
			 struct sfu_mapping *mapping)
{
	struct file *file = READ_ONCE(vma->vm_file);
	unsigned long last;
	int i;

	memset(mapping, 0, sizeof(*mapping));
	/* Until it is proved that the mapping has this file, the inode is but a number. */
	if (READ_ONCE(vma->vm_flags) & VM_EXEC)
		mapping->inode = file ? (uintptr_t)READ_ONCE(file->f_inode) : SFU_NO_FILE;
	mapping->start = READ_ONCE(vma->vm_start);
	mapping->end = READ_ONCE(vma->vm_end);
	mapping->offset = (uint64_t)READ_ONCE(vma->vm_pgoff) << PAGE_SHIFT;
	mapping->executable = READ_ONCE(vma->vm_flags) & VM_EXEC;
	mapping->is_file = file;

	/* All segments of a file are mapped by one open file. It is compared, never looked into. */
	for (i = 0; (file || mapping->executable) && i <= HEAD_DISTANCE; i++) {
		if (!file && vma)
			file = READ_ONCE(vma->vm_file);
		if (file && vma && READ_ONCE(vma->vm_file) == file && !READ_ONCE(vma->vm_pgoff)) {
			mapping->head = READ_ONCE(vma->vm_start);
			mapping->head_size = min(READ_ONCE(vma->vm_end) - mapping->head, U32_MAX);
			break;
		}
		if (!first)
			break;
		vma = mapping_at(mm, first - 1, &first, &last);
	}
}

static bool read_at(struct mm_struct *mm, unsigned long address, struct sfu_mapping *mapping)
{
	unsigned long first, last;
	struct vm_area_struct *vma = mapping_at(mm, address, &first, &last);

	if (!vma)
		return false;
	read_mapping(mm, vma, first, mapping);
	return address >= mapping->start && address < mapping->end;
}

int sfu_find_mapping(uint64_t address, struct sfu_mapping *mapping)
{
	struct mm_struct *mm = current->mm;
	struct sfu_mapping again;
	int tries, ret = -EAGAIN;
	unsigned int sequence;

	if (!mm || address >= TASK_SIZE_MAX)
		return -ENOENT;
	rcu_read_lock();
	for (tries = 0; tries < 3; tries++) {
		bool calm = mmap_lock_speculate_try_begin(mm, &sequence);
		bool found = read_at(mm, address, mapping);

		if (!calm || mmap_lock_speculate_retry(mm, sequence)) {
			/*
			 * Someone holds the lock, perhaps the very task that was interrupted, for as
			 * long as a fork takes. Two readings that agree are believed.
			 */
			if (read_at(mm, address, &again) != found ||
			    (found && memcmp(mapping, &again, sizeof(again))))
				continue;
			sequence = 1;
		}
		mapping->sequence = sequence;
		ret = found ? 0 : -ENOENT;
		break;
	}
	if (!ret)
		sfu_find_table(mapping);
	rcu_read_unlock();
	return ret;
}

int sfu_next_executable(uint64_t address, unsigned int limit, struct sfu_mapping *mapping)
{
	struct mm_struct *mm = current->mm;
	unsigned long at, first, last;
	int ret = -EAGAIN;

	rcu_read_lock();
	for (at = address; limit; limit--, at = last + 1) {
		struct vm_area_struct *vma = mapping_at(mm, at, &first, &last);

		if (vma && (READ_ONCE(vma->vm_flags) & VM_EXEC) && READ_ONCE(vma->vm_file)) {
			read_mapping(mm, vma, first, mapping);
			/* Whose file it is was not proved. */
			mapping->inode = 0;
			if (mapping->end > address)
				ret = 0;
			break;
		}
		if (last < at)
			break;
		if (last >= TASK_SIZE_MAX - 1) {
			ret = -ENOENT;
			break;
		}
	}
	rcu_read_unlock();
	return ret;
}

static DEFINE_PER_CPU(struct sfu_places, places);

struct sfu_places *sfu_places_enter(void)
{
	struct sfu_places *own;
	uint64_t id, sequence, tables;

	preempt_disable();
	own = this_cpu_ptr(&places);
	if (own->busy) {
		preempt_enable();
		return NULL;
	}
	WRITE_ONCE(own->busy, true);
	barrier();
	/*
	 * From here on an RCU reader: an inode that a mapping still has now is not freed before
	 * sfu_places_leave(), nor a table that is still there. So this is read here, and not before.
	 */
	sfu_mappings_version(&id, &sequence);
	tables = READ_ONCE(sfu_tables_given);
	if (own->id != id || own->sequence != sequence || own->tables != tables) {
		own->id = id;
		own->sequence = sequence;
		own->tables = tables;
		memset(own->places, 0xff, sizeof(own->places));
	}
	own->walk++;
	if (!(sequence & 1))
		return own;
	sfu_places_leave(own);
	return NULL;
}

void sfu_places_leave(struct sfu_places *own)
{
	barrier();
	WRITE_ONCE(own->busy, false);
	preempt_enable();
}

void sfu_mappings_version(uint64_t *id, uint64_t *sequence)
{
	*id = current->mm->context.ctx_id;
	/* A table more or less may change the verdict, too. */
	*sequence = raw_read_seqcount(&current->mm->mm_lock_seq) | READ_ONCE(sfu_tables_given) << 32;
}

/* ---- What can be seen from outside ---- */

uint64_t *const sfu_counters = (uint64_t *)(uintptr_t)&counters[0];

uint64_t sfu_counted(unsigned int counter)
{
	uint64_t sum = 0;
	int cpu;

	if (counter < SFU_COUNTERS)
		for_each_possible_cpu(cpu)
			sum += READ_ONCE(per_cpu(counters, cpu)[counter]);
	return sum;
}

void sfu_trace_walk(const char *context, unsigned int frames, const char *reason)
{
	trace_sframe_unwind_walk(context, frames, reason);
}

#ifdef CONFIG_KUNIT

#include <kunit/test.h>
#include <kunit/test-bug.h>
#include <linux/mman.h>

int64_t sfu_test_map(uint64_t len, bool executable)
{
	return kunit_vm_mmap(kunit_get_current_test(), NULL, 0, len,
			     PROT_READ | PROT_WRITE | (executable ? PROT_EXEC : 0),
			     MAP_ANONYMOUS | MAP_PRIVATE, 0);
}

int sfu_test_unmap(uint64_t address, uint64_t len)
{
	return vm_munmap(address, len);
}

int sfu_test_write(uint64_t address, const void *from, unsigned int len)
{
	return copy_to_user((void __user *)address, from, len) ? -EFAULT : 0;
}

#endif
