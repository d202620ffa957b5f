# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Changes of later versions, as distributions carry them back, for the headers of Linux 6.1 and
# 6.12 at $headers and the tree at $tree. Sourced by the stage headers.

# add FILE - adds the text of stdin to a header.
add() {
	local guard=_BACKPORT_$RANDOM$RANDOM
	{ echo "#ifndef $guard" && echo "#define $guard" && cat && echo "#endif"; } \
		>>"$headers/include/linux/$1"
}

# 6.13.
add_multigrain_times() {
	add fs.h <<-'END'
		#define FS_MGTIME 64
		static inline bool is_mgtime(const struct inode *inode)
		{
			return inode->i_sb->s_type->fs_flags & FS_MGTIME;
		}
		void fill_mg_cmtime(struct kstat *stat, u32 request_mask, struct inode *inode);
	END
	printf '0x00000000\tfill_mg_cmtime\tvmlinux\tEXPORT_SYMBOL\t\n' >>"$tree/Module.symvers"
}

# 6.14.
add_speculation() {
	add mmap_lock.h <<-'END'
		static inline bool mmap_lock_speculate_try_begin(struct mm_struct *mm,
								 unsigned int *seq)
		{
			return raw_seqcount_try_begin(&mm->mm_lock_seq, *seq);
		}
		static inline bool mmap_lock_speculate_retry(struct mm_struct *mm, unsigned int seq)
		{
			return read_seqcount_retry(&mm->mm_lock_seq, seq);
		}
	END
	sed -i '/^#endif.*_LINUX_SEQLOCK_H/i\
#define raw_seqcount_try_begin(s, start) (!(((start) = raw_read_seqcount(s)) & 1))' \
		"$headers/include/linux/seqlock.h"
}

# 6.18.
add_mm_flags_test() {
	add mm.h <<-'END'
		static inline bool mm_flags_test(int flag, const struct mm_struct *mm)
		{
			return test_bit(flag, &mm->flags);
		}
	END
}
