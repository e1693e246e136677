/* SPDX-License-Identifier: Apache-2.0 */
/* The clock and the futex, for both sides of the shared memory. */
#ifndef SIMOS_H
#define SIMOS_H

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t sim_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static inline uint64_t sim_realtime_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* Sleep while *word == value, until the absolute time `until_ns` (UINT64_MAX: for ever). */
static inline void sim_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t until_ns)
{
	struct timespec ts = {
		.tv_sec = (time_t)(until_ns / 1000000000ull),
		.tv_nsec = (long)(until_ns % 1000000000ull),
	};

	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, until_ns == UINT64_MAX ? NULL : &ts, NULL,
		FUTEX_BITSET_MATCH_ANY);
}

static inline void sim_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

#endif
