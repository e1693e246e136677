/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Budgets: every entry of a table that all share is charged to a tenant, so that nobody can use up another's room.
 *
 * A tenant first gets what is kept for it, then what is left of what all share, up to its ceiling. Beyond that its own
 * further work is not seen, which is counted with its name; user space charges it for the worst it could do. Events are
 * let through at a rate, with a burst: who floods the ring hides nobody's work but its own.
 *
 * Each set of programs has these maps for its own tables. It says how it counts a refusal, as count_over_budget(),
 * before it includes this.
 */
#ifndef FAIRSCHED_BUDGET_H
#define FAIRSCHED_BUDGET_H

#include "ancestors.h"
#include "atomics.h"

BPF_F_TABLE("array", u32, struct fs_budget, budget_by_owner, FS_MAX_OWNERS, 1024 /* BPF_F_MMAPABLE */);
/* Written by user space, but for what is in use of the shared room. */
BPF_F_TABLE("array", u32, struct fs_limits, limits_of_all, 1, 1024 /* BPF_F_MMAPABLE */);
/* Written by user space: the cgroups of tenants, not those below them. */
BPF_HASH(owner_by_cgroup, fs_u64, fs_u64, FS_MAX_OWNERS);

struct owner {
	fs_u64 cgroup_id; /* the tenant's cgroup; the task's own where it belongs to none */
	u32 number;
};

/* The tenant of the calling task: the innermost cgroup around it that user space has named. */
static __always_inline struct owner find_owner(void)
{
	struct owner found = {.cgroup_id = bpf_get_current_cgroup_id(), .number = FS_STRANGERS};

	FS_LOOP
	for (int level = 1; level <= FS_MAX_OWNER_LEVELS; level++) {
		fs_u64 id = ancestor_at(level);
		fs_u64 *number = owner_by_cgroup.lookup(&id);

		if (!id)
			break;
		if (number) {
			found.number = *number;
			found.cgroup_id = id;
		}
	}
	return found;
}

static __always_inline void refuse(struct fs_budget *budget, u32 table)
{
	__sync_fetch_and_add(&budget->refused[table], 1);
	budget->refused_ns[table] = bpf_ktime_get_ns();
	count_over_budget();
}

/* For one more entry of a tenant. Returns enum fs_room: where it is from. */
static __always_inline u32 take_room(u32 owner, u32 table)
{
	struct fs_budget *budget = budget_by_owner.lookup(&owner);
	int first = 0;
	struct fs_limits *limits = limits_of_all.lookup(&first);
	fs_u64 used;

	if (!budget || !limits)
		return FS_ROOM_NONE;
	used = FETCH_ADD(&budget->used[table], 1);
	if (used < limits->reserve[table])
		return FS_ROOM_OWN;
	if (used < limits->ceiling[table]) {
		if (FETCH_ADD(&limits->shared_used[table], 1) < limits->shared[table])
			return FS_ROOM_SHARED;
		__sync_fetch_and_add(&limits->shared_used[table], -1);
	}
	__sync_fetch_and_add(&budget->used[table], -1);
	refuse(budget, table);
	return FS_ROOM_NONE;
}

static __always_inline void give_room(u32 owner, u32 table, u32 room)
{
	struct fs_budget *budget = budget_by_owner.lookup(&owner);
	int first = 0;
	struct fs_limits *limits = limits_of_all.lookup(&first);

	if (!budget || !limits || room == FS_ROOM_NONE)
		return;
	__sync_fetch_and_add(&budget->used[table], -1);
	if (room == FS_ROOM_SHARED)
		__sync_fetch_and_add(&limits->shared_used[table], -1);
}

/* Whether `edges` more of a tenant may be told. What is not let through is not paid for. */
static __always_inline int admit_edges(u32 owner, u32 edges, fs_u64 now)
{
	struct fs_budget *budget = budget_by_owner.lookup(&owner);
	int first = 0;
	struct fs_limits *limits = limits_of_all.lookup(&first);
	fs_u64 paid, cost;

	if (!budget || !limits)
		return 0;
	cost = limits->edge_ns * edges;
	paid = budget->edges_ns;
	if (paid < now)
		SWAP_IF(&budget->edges_ns, paid, now);
	paid = FETCH_ADD(&budget->edges_ns, cost) + cost;
	if (paid <= now + limits->edge_burst_ns)
		return 1;
	__sync_fetch_and_add(&budget->edges_ns, -cost);
	refuse(budget, FS_TABLE_EDGES);
	return 0;
}

#endif
