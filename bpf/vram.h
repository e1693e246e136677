/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * VRAM by cgroup: of its processes and of all below it, so that a limit is checked with one look whoever allocates.
 *
 * A client is charged to the cgroup it was made in and to every cgroup above; these never change while it lives, nor
 * does whose limit is where matter here. So no sum has ever to be worked out anew.
 */
#ifndef FAIRSCHED_VRAM_H
#define FAIRSCHED_VRAM_H

#include "driver_maps.h"

/* Written here; read by the limit (vram_gate.h) and by user space, which has those deleted whose cgroups are gone. */
BPF_HASH(vram_by_cgroup, fs_u64, struct fs_cgroup_vram, FS_MAX_VRAM_CGROUPS);
/* An initial value too large for the BPF stack. Never written. */
BPF_ARRAY(zero_vram, struct fs_cgroup_vram, 1);

/* Whoever comes first pays for the sum of a cgroup; it need not be its own. */
static __always_inline void enter_cgroup(fs_u64 id, u32 owner, struct fs_cgroup_vram *zero)
{
	struct fs_cgroup_vram *sum = vram_by_cgroup.lookup(&id);
	u32 room;

	if (sum) /* mostly */
		return;
	room = take_room(owner, FS_TABLE_CGROUPS);
	if (room == FS_ROOM_NONE)
		return;
	if (vram_by_cgroup.insert(&id, zero)) {
		give_room(owner, FS_TABLE_CGROUPS, room);
		return;
	}
	sum = vram_by_cgroup.lookup(&id);
	if (sum) {
		sum->owner = owner;
		sum->room = room;
	}
}

static __always_inline void note_above(struct fs_client *c)
{
	int first = 0;
	struct fs_cgroup_vram *zero = zero_vram.lookup(&first);
	fs_u64 own = c->cgroup_id;

	if (!zero)
		return;
	FS_LOOP
	for (int level = 1; level <= FS_MAX_CGROUP_DEPTH; level++) {
		fs_u64 id = ancestor_at(level);

		c->above[level - 1] = id; /* 0 below its own */
		if (id)
			enter_cgroup(id, c->owner, zero);
	}
	if (c->above[0] && !vram_by_cgroup.lookup(&own)) /* the root has no sum */
		count(FS_DRIVER_COUNT_VRAM_FULL);
	if (ancestor_at(FS_MAX_CGROUP_DEPTH + 1))
		count(FS_DRIVER_COUNT_DEEP_CGROUP);
}

/* So that every verifier sees that it is one of FS_MAX_GPUS, wherever the compiler keeps it. */
static __always_inline fs_u64 *sum_of(struct fs_cgroup_vram *sum, fs_u64 gpu)
{
	asm volatile("%0 &= 31" : "+r"(gpu));
	return &sum->bytes[gpu];
}
_Static_assert(FS_MAX_GPUS == 32, "sum_of");

/* `bytes` is negative when something goes. A GPU that is not known has no limit. */
static __always_inline void add_above(struct fs_client *c, u32 gpu, fs_u64 bytes)
{
	fs_u64 is_less = bytes >> 63;

	if (gpu >= FS_MAX_GPUS)
		return;
	FS_LOOP
	for (int i = 0; i < FS_MAX_CGROUP_DEPTH; i++) {
		fs_u64 id = c->above[i];
		struct fs_cgroup_vram *sum;

		if (!id)
			break;
		sum = vram_by_cgroup.lookup(&id);
		if (!sum)
			continue;
		if (is_less)
			__sync_fetch_and_add(&sum->begun, 1);
		__sync_fetch_and_add(sum_of(sum, gpu), bytes);
		if (is_less)
			__sync_fetch_and_add(&sum->ended, 1);
	}
}

/* Of a client whose sums are closed. */
static __always_inline void free_above(struct fs_client *c)
{
	FS_LOOP
	for (int i = 0; i < FS_MAX_CGROUP_DEPTH; i++) {
		fs_u64 id = c->above[i];
		struct fs_cgroup_vram *sum;

		if (!id)
			break;
		sum = vram_by_cgroup.lookup(&id);
		if (!sum)
			continue;
		__sync_fetch_and_add(&sum->begun, 1);
		/* Unrolled, and also where it is 0: the verifier goes through each jump again and again. */
		_Pragma("clang loop unroll(full)") for (u32 gpu = 0; gpu < FS_MAX_GPUS; gpu++)
			__sync_fetch_and_add(&sum->bytes[gpu], c->freed[gpu]);
		__sync_fetch_and_add(&sum->ended, 1);
	}
}

#endif
