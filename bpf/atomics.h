/* SPDX-License-Identifier: GPL-2.0-only */
/* Adding and swapping that tell what was there, for sets that are loaded on kernels without them, too. */
#ifndef FAIRSCHED_ATOMICS_H
#define FAIRSCHED_ATOMICS_H

#include "clock.h"

#ifdef FS_NO_FETCH
/* Before Linux 5.12 there is only the plain add: calls of one client that end at the same time may be miscounted. */
#undef __sync_fetch_and_add
#define FETCH_ADD(word, value)                               \
	({                                                   \
		fs_u64 before_ = *(volatile fs_u64 *)(word); \
		__sync_fetch_and_add(word, value);           \
		before_;                                     \
	})
#define SWAP(word, value)                                    \
	({                                                   \
		fs_u64 before_ = *(volatile fs_u64 *)(word); \
		*(volatile fs_u64 *)(word) = (value);        \
		before_;                                     \
	})
#define SWAP_IF(word, old, value)                             \
	({                                                    \
		fs_u64 before_ = *(volatile fs_u64 *)(word);  \
		if (before_ == (old))                         \
			*(volatile fs_u64 *)(word) = (value); \
		before_;                                      \
	})
#else
#define FETCH_ADD(word, value) __sync_fetch_and_add(word, value)
#define SWAP(word, value) __sync_lock_test_and_set(word, value)
#define SWAP_IF(word, old, value) __sync_val_compare_and_swap(word, old, value)
#endif

#endif
