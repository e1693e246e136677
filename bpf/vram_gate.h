/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The VRAM limit: whether an allocation that is about to be asked for would pass what a tenant may have on a GPU.
 *
 * It is checked against what is allocated, never against what other calls ask for meanwhile and may not get: so
 * nobody is refused what fits. What cannot be told here (a page that is not in memory, a client older than
 * we are, a device whose GPU is not known) is let through; user space sees what comes of it.
 */
#ifndef FAIRSCHED_VRAM_GATE_H
#define FAIRSCHED_VRAM_GATE_H

#include "rm_call.h"

#define ENOMEM 12
#define SUM_TRIES 4

/*
 * Written by user space, a whole limit at a time; only the gate reads it. Elements are freed after a grace period
 * (1 = BPF_F_NO_PREALLOC), so that one that is replaced is still whole for whoever reads it just then.
 */
BPF_F_TABLE("hash", fs_u64, struct fs_vram_limit, limit_by_cgroup, FS_MAX_VRAM_CGROUPS, 1);
/* Written here, read by user space. */
BPF_HASH(refused_by_key, struct fs_refusal_key, struct fs_refusal, FS_MAX_VRAM_CGROUPS);
/* Written by user space: 1 = another hook sees the calls, here they are only judged. */
BPF_ARRAY(is_gate_only, u32, 1);

/* What is asked for. */
struct asked {
	struct fs_object_key parent;
	fs_u64 bytes;
};

/* Size and place of an allocation of VRAM; bytes 0 for every other call. */
static __always_inline void read_asked(struct call *call, struct asked *asked)
{
	struct nvos21 a = {}; /* all forms of ALLOC and ALLOC_MEMORY begin like it */

	if (call->number == NV_ESC_RM_VID_HEAP_CONTROL && call->size == NVOS32_SIZE) {
		struct nvos32 h;

		if (read_user(&h, sizeof(h), call->arg) || !is_heap_vram(&h))
			return;
		a.hRoot = h.hRoot;
		a.hObjectParent = h.hObjectParent;
		asked->bytes = h.size;
	} else if (call->number == NV_ESC_RM_ALLOC &&
		   (call->size == sizeof(struct nvos64) || call->size == NVOS64_SIZE_525 ||
		    call->size == sizeof(struct nvos21))) {
		if (read_user(&a, __builtin_offsetof(struct nvos21, paramsSize), call->arg) ||
		    !is_vram_class(a.hClass))
			return;
		read_user(&asked->bytes, sizeof(asked->bytes),
			  a.pAllocParms + NV_MEMORY_ALLOCATION_PARAMS_SIZE);
	} else if (call->number == NV_ESC_RM_ALLOC_MEMORY && call->size == sizeof(struct nvos02)) {
		struct nvos02 m;

		if (read_user(&m, sizeof(m), call->arg) || !is_vram_class(m.hClass))
			return;
		a.hRoot = m.hRoot;
		a.hObjectParent = m.hObjectParent;
		asked->bytes = m.limit + 1;
	}
	asked->parent.client = a.hRoot;
	asked->parent.handle = a.hObjectParent;
}

enum vram_word {
	VRAM_BYTES,
	VRAM_BEGUN,
	VRAM_ENDED,
};

/* Over all cgroups of a tenant. Below 0, as a sum is for a moment at times, is 0. */
static __always_inline fs_u64 add_up(struct fs_vram_limit *limit, enum vram_word which, u32 gpu)
{
	fs_u64 total = 0;

	FS_LOOP
	for (int i = 0; i < FS_MAX_LIMIT_CGROUPS; i++) {
		fs_u64 id = limit->cgroup[i], word;
		struct fs_cgroup_vram *sum = vram_by_cgroup.lookup(&id);

		if (!id)
			break;
		if (!sum)
			continue;
		if (which == VRAM_BYTES)
			word = *(volatile fs_u64 *)sum_of(sum, gpu);
		else if (which == VRAM_BEGUN)
			word = *(volatile fs_u64 *)&sum->begun;
		else
			word = *(volatile fs_u64 *)&sum->ended;
		total += word & ((word >> 63) - 1);
	}
	return total;
}

/*
 * Whether a tenant surely has more than `room`, and how much. What its cgroups have is read one after the other: memory
 * freed in one and allocated in another meanwhile would be counted twice. So it is believed only if nothing was being
 * taken from any of them from before the first was read until after the last; else it is read again.
 */
static __always_inline int has_more(struct fs_vram_limit *limit, u32 gpu, fs_u64 room, fs_u64 *held)
{
	FS_LOOP
	for (int i = 0; i < SUM_TRIES; i++) {
		fs_u64 ended = add_up(limit, VRAM_ENDED, gpu), begun;

		*held = add_up(limit, VRAM_BYTES, gpu);
		begun = add_up(limit, VRAM_BEGUN, gpu);
		if (*held <= room)
			return 0;
		if (!limit->cgroup[1] || begun == ended)
			return 1;
	}
	return 0;
}

static __always_inline void note_refusal(fs_u64 tenant, u32 gpu, fs_u64 asked_bytes, fs_u64 held_bytes)
{
	struct fs_refusal_key key = {.tenant = tenant, .gpu = gpu};
	struct fs_refusal fresh = {}, *refusal = refused_by_key.lookup_or_try_init(&key, &fresh);

	if (!refusal)
		return;
	__sync_fetch_and_add(&refusal->refused, 1);
	refusal->t_ns = bpf_ktime_get_ns();
	refusal->asked_bytes = asked_bytes;
	refusal->held_bytes = held_bytes;
	refusal->tgid = bpf_get_current_pid_tgid() >> 32;
}

/* A cgroup that has the innermost limit there is for a client; 0 = none. */
static __always_inline fs_u64 limited_cgroup(struct fs_client *c)
{
	fs_u64 found = 0;

	FS_LOOP
	for (int i = 0; i < FS_MAX_CGROUP_DEPTH; i++) {
		fs_u64 id = c->above[i];

		if (id && limit_by_cgroup.lookup(&id))
			found = id;
	}
	return found;
}

static __always_inline int is_beyond_limit(fs_u64 file, u32 request, fs_u64 arg)
{
	struct call call = {.arg = arg, .number = request & 0xff, .size = request >> 16 & 0x3fff};
	struct asked asked = {};
	struct fs_client *c;
	struct fs_object *parent;
	fs_u64 id;
	u32 gpu;

	resolve(&call);
	read_asked(&call, &asked);
	/* More than there can be is the driver's to refuse. */
	if (!asked.bytes || asked.bytes >= MAX_VRAM)
		return 0;
	c = client_by_handle.lookup(&asked.parent.client);
	parent = object_by_key.lookup(&asked.parent);
	/* Another's client is the driver's to refuse, and no refusal of its owner's. */
	if (!c || !parent || !may_change(c, file))
		return 0;
	gpu = parent->gpu;
	if (gpu >= FS_GPU_UNKNOWN)
		return 0;
	id = limited_cgroup(c);
	FS_LOOP
	for (int i = 0; i < FS_MAX_LIMIT_LEVELS; i++) {
		struct fs_vram_limit *limit = limit_by_cgroup.lookup(&id);
		fs_u64 held = 0;

		if (!limit)
			return 0;
		/* More than it may have at all: what it has is of no matter. */
		if (asked.bytes > limit->bytes || has_more(limit, gpu, limit->bytes - asked.bytes, &held)) {
			note_refusal(limit->tenant, gpu, asked.bytes, held);
			return 1;
		}
		id = limit->above;
	}
	return 0;
}

static __always_inline int is_judged_only(void)
{
	int first = 0;
	u32 *is_only = is_gate_only.lookup(&first);

	return is_only && *is_only;
}

#endif
