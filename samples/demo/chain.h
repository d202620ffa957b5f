/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A program that knows its own call chain.
 *
 * Register r12 is taken away from the compiler and always says by which chain
 * of calls the current function was reached: it holds the number of a node in
 * a tree whose nodes are (parent, return address, function). perf stores r12
 * with every sample (--user-regs=r12), next to the stack that the unwinder
 * reported, so a judge can compare the two (tests/lib/judge.py).
 *
 * Rules for a program:
 *  - every file includes this header first, every function is CHAINED and
 *    begins with CHAIN_ENTER(); a function that is not CHAINED must be
 *    always_inline;
 *  - main and thread functions begin with CHAIN_ROOT() instead, main after
 *    chain_start(); main calls chain_populate() next, chain_write() in the
 *    end, and leaves by sys_exit();
 *  - everything is compiled with -ffixed-r12: the variable alone lets gcc use
 *    the register for other things between two calls;
 *  - no call into libc while the chain is being walked: libc keeps r12, but
 *    has no .sframe.
 */
#ifndef CHAIN_H
#define CHAIN_H

#ifndef __x86_64__
#error "chain.h knows x86-64 only"
#endif

/* CHAIN_MAGIC << 40 | tree << 16 | node; a tree is named by its maker's pid. */
register unsigned long chain_here asm("r12");

#define CHAIN_MAGIC 0xc4a14eUL

/*
 * The tree is a hash table at a fixed address, shared by the program, its
 * libraries, its threads and the children it forks. A key is one word, return
 * address << 16 | parent's node, so a node is added by one compare-and-swap.
 * One call can lead to several functions, so the name belongs to the key; two
 * threads that race for a node may both make one, which does no harm.
 * Node 0 is above all roots; its key is the value of r12 that stands for it.
 */
struct chain_node {
	unsigned long key;
	const char *name;
};

#define CHAIN_TREE ((struct chain_node *)0x200000000000)
#define CHAIN_NODES 65536

/* No cloning, no inlining: the name in the tree is the name of the symbol. */
#define CHAINED __attribute__((noipa))

#define CHAIN_ENTER()								\
	unsigned long chain_before __attribute__((cleanup(chain_leave))) = chain_here; \
	chain_enter((unsigned long)__builtin_return_address(0), __func__)

#define CHAIN_ROOT()								\
	unsigned long chain_before __attribute__((cleanup(chain_leave))) = chain_here; \
	chain_here = CHAIN_TREE->key;						\
	chain_enter((unsigned long)__builtin_return_address(0), __func__)

/* Makes the tree. In few instructions: until then no sample has a known chain. */
void chain_start(void);
/* Takes the tree's page faults now, so that they are not among the program's. */
void chain_populate(void);
/* Appends the tree to the file: lines of "tree node parent return-address name". */
void chain_write(const char *path);

static inline __attribute__((always_inline)) void
chain_enter(unsigned long return_address, const char *name)
{
	unsigned long key = return_address << 16 | (chain_here & 0xffff);
	unsigned long node = key * 0x9e3779b97f4a7c15UL >> 48;

	for (;; node = (node + 1) % CHAIN_NODES) {
		struct chain_node *slot = CHAIN_TREE + node;
		unsigned long found = __atomic_load_n(&slot->key, __ATOMIC_RELAXED);

		if (__builtin_expect(!found, 0) &&
		    __atomic_compare_exchange_n(&slot->key, &found, key, 0,
						__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			slot->name = name;
			break;
		}
		if (found == key && slot->name == name)
			break;
	}
	chain_here = (chain_here & ~0xffffUL) | node;
}

/* Runs when a function returns, on whichever way, after its last call. */
static inline __attribute__((always_inline)) void
chain_leave(unsigned long *before)
{
	chain_here = *before;
}

#endif
