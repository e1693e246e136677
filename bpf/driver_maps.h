/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The maps in which the driver's clients and objects are kept, and whose room each entry takes (budget.h).
 *
 * Whoever deletes an entry gives its room back. User space deletes none by itself: it runs on_forgotten.
 */
#ifndef FAIRSCHED_DRIVER_MAPS_H
#define FAIRSCHED_DRIVER_MAPS_H

#include "atomics.h"

/*
 * Written here; read by user space, which has objects deleted that lead nowhere. A client ends with its FREE or with
 * the file it was made through.
 */
BPF_HASH(client_by_handle, u32, struct fs_client, FS_MAX_CLIENTS);
BPF_HASH(object_by_key, struct fs_object_key, struct fs_object, FS_MAX_OBJECTS);
BPF_HASH(clients_by_file, fs_u64, struct fs_file, FS_MAX_CLIENTS);
/* Processes that made a client. User space has those deleted that are gone. */
BPF_HASH(maker_by_tgid, u32, struct fs_maker, FS_MAX_CALLERS);
/* Read by user space, which has the entries of dead processes deleted. */
BPF_HASH(calls_by_proc, struct fs_caller, struct fs_calls, FS_MAX_CALLERS);
/* What should not happen and did; read by user space. */
BPF_F_TABLE("array", u32, fs_u64, driver_counts, FS_DRIVER_COUNTS, 1024 /* BPF_F_MMAPABLE */);
/* An initial value too large for the BPF stack. Never written. */
BPF_ARRAY(zero_client, struct fs_client, 1);

static __always_inline void count(u32 what)
{
	fs_u64 *n = driver_counts.lookup(&what);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline void count_over_budget(void)
{
	count(FS_DRIVER_COUNT_OVER_BUDGET);
}

#include "budget.h"

/* A process has what is not in the books: its sums are too low. */
static __always_inline void note_partial(u32 tgid)
{
	struct fs_maker *maker = maker_by_tgid.lookup(&tgid);

	if (maker)
		maker->is_partial = 1;
}

#endif
