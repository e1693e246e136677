/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The processor-sharing clock of one GPU engine: V(t) = integral of dt / n(t).
 *
 * A GPU that time-slices n busy contexts in turn gives each dt/n of service, so the V that passes while a
 * context is busy is the service it received, and nothing has to be done per slice. n and B live in one word
 * (V = B + t/n), so a change of n is one compare-and-swap: tracing programs may not take a bpf_spin_lock.
 *
 * Accepted race: two CPUs that change n within the same nanoseconds may order their `now` differently from
 * their swaps; V is then off by that difference, never more.
 */
#ifndef FAIRSCHED_CLOCK_H
#define FAIRSCHED_CLOCK_H

#include "abi.h"

#define FS_CLOCK_TRIES 16
/* Bounded loops stay loops: unrolled they cost compile time and memory, not speed (kernel >= 5.3). */
#define FS_LOOP _Pragma("clang loop unroll(disable)")

static __always_inline fs_u64 clock_n(fs_u64 word)
{
	return word >> FS_CLOCK_SHIFT;
}

/* V at `now` in ns, modulo 2^56 (2.2 years). */
static __always_inline fs_u64 clock_v(fs_u64 word, fs_u64 now)
{
	fs_u64 n = clock_n(word);
	fs_u64 part = n ? now / n : 0;

	return ((word & FS_CLOCK_MASK) + part) & FS_CLOCK_MASK;
}

/* a - b in clock arithmetic; 0 when b is ahead of a (a race of nanoseconds, see above). */
static __always_inline fs_u64 clock_since(fs_u64 a, fs_u64 b)
{
	fs_u64 d = (a - b) & FS_CLOCK_MASK;

	return d >> (FS_CLOCK_SHIFT - 1) ? 0 : d;
}

/*
 * Add `delta` (+1 or -1) to n at `now`. Stores V at that moment and the old n.
 * Returns 0, or the counter that says why not.
 */
static __always_inline int clock_step(fs_u64 *word, int delta, fs_u64 now, fs_u64 *v, fs_u64 *old_n)
{
	FS_LOOP
	for (int i = 0; i < FS_CLOCK_TRIES; i++) {
		fs_u64 old = *(volatile fs_u64 *)word;
		fs_u64 n = clock_n(old);
		fs_u64 n2 = n + delta;
		fs_u64 part;

		*v = clock_v(old, now);
		*old_n = n;
		if (n2 > FS_CLOCK_MAX_N)
			return FS_COUNT_CLOCK_RANGE;
		part = n2 ? now / n2 : 0;
		if (__sync_val_compare_and_swap(
			    word, old, (n2 << FS_CLOCK_SHIFT) | ((*v - part) & FS_CLOCK_MASK)) == old)
			return 0;
	}
	return FS_COUNT_CLOCK_RACE;
}

#endif
