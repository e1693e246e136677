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

#if defined(__clang_major__) && __clang_major__ < 12
/*
 * LLVM 11 (bcc 0.18: Ubuntu 22.04) knows no BPF atomic but a plain add, and aborts when asked for one. The
 * kernel does (5.12), so here they are in bytes. bcc has clang check register names against x86, so none can be
 * named: the assembler turns the name it was given for an operand into its number.
 */
#define FS_REGS                                                                       \
	".set fs_r0, 0\n.set fs_r1, 1\n.set fs_r2, 2\n.set fs_r3, 3\n.set fs_r4, 4\n" \
	".set fs_r5, 5\n.set fs_r6, 6\n.set fs_r7, 7\n.set fs_r8, 8\n.set fs_r9, 9\n.set fs_r10, 10\n"
#define FS_MOV(dst, src) ".byte 0xbf, (" src " << 4) | " dst "\n.short 0\n.long 0\n"
#define FS_ATOMIC(dst, src, op) ".byte 0xdb, (" src " << 4) | " dst "\n.short 0\n.long " op "\n"
#define FS_FETCH(name, op)                                                                                  \
	static __always_inline fs_u64 name(fs_u64 *word, fs_u64 value)                                      \
	{                                                                                                   \
		asm volatile(FS_REGS FS_ATOMIC("fs_%1", "fs_%0", op) : "+r"(value) : "r"(word) : "memory"); \
		return value;                                                                               \
	}

FS_FETCH(fetch_add, "0x01")
FS_FETCH(fetch_or, "0x41")
FS_FETCH(fetch_and, "0x51")
FS_FETCH(fetch_set, "0xe1")

/* An operand, or where it went when r0 was kept aside. */
#define FS_PICK(name, operand) \
	".if " operand "\n.set " name ", " operand "\n.else\n.set " name ", fs_%1\n.endif\n"
#define FS_BEFORE FS_REGS FS_MOV("fs_%1", "fs_r0") FS_MOV("fs_r0", "fs_%3")
#define FS_PICKED FS_PICK("fs_word", "fs_%2") FS_PICK("fs_value", "fs_%4")
#define FS_AFTER FS_MOV("fs_%0", "fs_r0") ".if fs_%0\n" FS_MOV("fs_r0", "fs_%1") ".endif\n"
#define FS_SWAP FS_BEFORE FS_PICKED FS_ATOMIC("fs_word", "fs_value", "0xf1") FS_AFTER

/*
 * Compare-and-swap works through r0, which cannot be named as clobbered: it is kept aside and put back, and an
 * operand that happens to live in it is taken from there. The call makes sure that r0 may be read at all.
 */
static __always_inline fs_u64 compare_and_swap(fs_u64 *word, fs_u64 old, fs_u64 value)
{
	fs_u64 seen, kept;

	bpf_get_smp_processor_id();
	asm volatile(FS_SWAP : "=&r"(seen), "=&r"(kept) : "r"(word), "r"(old), "r"(value) : "memory");
	return seen;
}

#define __sync_fetch_and_add fetch_add
#define __sync_fetch_and_or fetch_or
#define __sync_fetch_and_and fetch_and
#define __sync_lock_test_and_set fetch_set
#define __sync_val_compare_and_swap compare_and_swap
#endif

#define FS_CLOCK_TRIES 16
/* Bounded loops stay loops: unrolled they cost compile time and memory, not speed (kernel >= 5.3). */
#define FS_LOOP _Pragma("clang loop unroll(disable)")

static __always_inline fs_u64 clock_n(fs_u64 word)
{
	return word >> FS_CLOCK_SHIFT;
}

/* V at `now` in ns, modulo 2^52 (52 days). */
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
