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
 * Of fs_delay.bucket: the first eight are 1024 ns wide, then four to each power of two (fairsched/base/buckets.py).
 * 64 bits each: Linux 6.1 forgets the bound of an index that is cut to 32 bits after it was compared.
 */
static __always_inline fs_u64 delay_bucket(fs_u64 ns)
{
	fs_u64 units = ns >> 10, rest = units >> 2, shift = 0, i;

	FS_LOOP
	for (int bit = 32; bit; bit >>= 1) {
		if (rest >> bit) {
			rest >>= bit;
			shift += bit;
		}
	}
	i = 4 * shift + (units >> shift);
	return i < FS_DELAY_BUCKETS ? i : FS_DELAY_BUCKETS - 1;
}

#endif
