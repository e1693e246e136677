/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queue delays: how long a turn was waited for, and the bucket it is counted in.
 *
 * A burst is not one wait. The hardware starts a context anew in each of its slices, so a burst of k slices waited k
 * times. The moments are not seen from here; how many there were is, by what the burst was charged: each of its k turns
 * counts as one wait of the k-th part.
 */
#ifndef FAIRSCHED_DELAY_H
#define FAIRSCHED_DELAY_H

#include "clock.h"

/* How many turns of `turn_ns` (a slice and a switch; 0: not known, so one) a service takes. */
static __always_inline fs_u64 delay_turns(fs_u64 service, fs_u64 turn_ns)
{
	return turn_ns && service ? (service - 1) / turn_ns + 1 : 1;
}

/*
 * The lesser of both. Linux 6.1 takes a jump that never happens for possible where the constant stands on the left, as
 * the compiler has it, and then knows no bound any more.
 */
#ifndef FS_AT_MOST
#define FS_AT_MOST(value, most)                       \
	({                                            \
		fs_u64 v_ = (value);                  \
		asm volatile("if %0 > %1 goto +1\n\t" \
			     "goto +1\n\t"            \
			     "%0 = %1"                \
			     : "+r"(v_)               \
			     : "i"(most));            \
		v_;                                   \
	})
#endif

/*
 * Of fs_delay.bucket: the first eight are 1024 ns wide, then four to each power of two (fairsched/base/buckets.py).
 * 64 bits each: Linux 6.1 forgets the bound of an index that is cut to 32 bits after it was compared.
 */
static __always_inline fs_u64 delay_bucket(fs_u64 ns)
{
	fs_u64 units = ns >> 10, rest = units >> 2, shift = 0;

	FS_LOOP
	for (int bit = 32; bit; bit >>= 1) {
		if (rest >> bit) {
			rest >>= bit;
			shift += bit;
		}
	}
	return FS_AT_MOST(4 * shift + (units >> shift), FS_DELAY_BUCKETS - 1);
}

#endif
