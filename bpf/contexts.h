/* SPDX-License-Identifier: GPL-2.0-only */
/* Contexts and their streams: which one a thread works in, slots and indexes given out and taken back. */
#ifndef FAIRSCHED_CONTEXTS_H
#define FAIRSCHED_CONTEXTS_H

#include "busy.h"

static __always_inline struct fs_ctx *ctx_at(u32 slot)
{
	return ctx_by_slot.lookup(&slot);
}

static __always_inline u32 *place_of_gpu(struct proc *p, u32 ordinal)
{
	fs_u64 index = ordinal;

	/* Opaque, and bounded just before it is used: else Linux 6.1 does not see the bound. */
	asm volatile("" : "+r"(index));
	return &p->gpu[index & (FS_MAX_GPUS - 1)];
}

/* The GPU + 1 that the process, or else user space, has named for an ordinal; 0 = nobody has. */
static __always_inline u32 named_gpu(u32 tgid, u32 ordinal)
{
	struct fs_dev_key key = {.tgid = tgid, .ordinal = ordinal};
	struct proc *p = proc_by_tgid.lookup(&tgid);
	u32 *gpu, said = 0;

	if (p && ordinal < FS_MAX_GPUS)
		said = *place_of_gpu(p, ordinal);
	if (said)
		return said;
	gpu = gpu_by_dev.lookup(&key);
	return gpu ? *gpu + 1 : 0;
}

/* Which GPU an ordinal of this process is; the ordinal itself, and a count, until anybody has said. */
static __always_inline u32 gpu_of(u32 tgid, u32 ordinal, fs_u16 *flags)
{
	u32 gpu = named_gpu(tgid, ordinal);

	if (gpu)
		return gpu <= FS_MAX_SLOTS ? gpu - 1 : FS_NO_GPU;
	*flags |= FS_CTX_GPU_GUESSED;
	count(FS_COUNT_GPU_GUESSED);
	return ordinal < FS_MAX_GPUS ? ordinal : 0;
}

/* Somebody may have named the GPU since. Only between intervals: an open one belongs to the clock it opened on. */
static __always_inline void name_gpu(struct fs_ctx *c)
{
	u32 gpu = named_gpu(c->tgid, c->ordinal);

	if (!gpu || c->busy[FS_COMPUTE].streams | c->busy[FS_COPY].streams)
		return;
	c->gpu = gpu <= FS_MAX_SLOTS ? gpu - 1 : FS_NO_GPU;
	c->flags &= ~FS_CTX_GPU_GUESSED;
}

static __always_inline void give_back(u32 slot)
{
	if (free_slots.push(&slot, BPF_EXIST))
		count(FS_COUNT_SLOT_LOST);
}

/* What is kept of a process, made when it is first heard of; 0: its tenant has its part of the table. */
static __always_inline struct proc *enter_proc(u32 tgid)
{
	struct proc *p = proc_by_tgid.lookup(&tgid), *zero;
	struct owner owner;
	int first = 0;
	u32 room;

	if (p)
		return p;
	zero = zero_proc.lookup(&first);
	if (!zero)
		return 0;
	owner = find_owner();
	room = take_room(owner.number, FS_TABLE_PROCESSES);
	if (room == FS_ROOM_NONE)
		return 0;
	p = proc_by_tgid.lookup_or_try_init(&tgid, zero);
	if (!p)
		count(FS_COUNT_PROC_FULL);
	/* Another thread of it may have been here meanwhile. */
	if (!p || __sync_val_compare_and_swap(&p->whose, 0, (fs_u64)owner.number << 8 | room))
		give_room(owner.number, FS_TABLE_PROCESSES, room);
	return p;
}

/* Whether it works in contexts that are not told apart, as its tenant has no room for them; counts that it does. */
static __always_inline int is_refused(u32 tgid)
{
	struct proc *p = proc_by_tgid.lookup(&tgid);
	struct fs_budget *budget;
	u32 owner;

	if (!p || !p->is_refused)
		return 0;
	owner = p->whose >> 8;
	budget = budget_by_owner.lookup(&owner);
	if (budget)
		refuse(budget, FS_TABLE_CONTEXTS);
	return 1;
}

/* Give a context of this process a slot; FS_NO_SLOT when its tenant may have no more. */
static __always_inline u32 add_ctx(u32 tgid, fs_u64 handle, u32 ordinal, fs_u16 flags)
{
	struct handle_key key = {.handle = handle, .tgid = tgid};
	struct fs_budget *budget;
	struct owner owner;
	struct seqs *seqs;
	struct proc *p;
	struct fs_ctx *c;
	fs_u64 now = bpf_ktime_get_ns();
	u32 slot, room, *have = ctx_by_handle.lookup(&key);
	int kept = 0;

	if (have)
		return *have; /* a primary context that is retained again */
	p = enter_proc(tgid);
	if (!p)
		return FS_NO_SLOT;
	owner = find_owner();
	/* Paid for with it: that it is there, that it is gone, and the end of its process. */
	room = admit_edges(owner.number, 3, now) ? take_room(owner.number, FS_TABLE_CONTEXTS) : FS_ROOM_NONE;
	if (room == FS_ROOM_NONE) {
		p->is_refused = 1;
		return FS_NO_SLOT;
	}
	if (free_slots.pop(&slot)) {
		count(FS_COUNT_CTX_FULL);
		give_room(owner.number, FS_TABLE_CONTEXTS, room);
		p->is_refused = 1;
		return FS_NO_SLOT;
	}
	c = ctx_at(slot);
	if (!c)
		return FS_NO_SLOT;
	c->handle = handle;
	c->cgroup_id = bpf_get_current_cgroup_id();
	c->charged_id = owner.cgroup_id;
	c->owner = owner.number;
	c->room = room;
	c->followed_ns = c->muted = 0;
	c->tgid = tgid;
	c->generation++;
	c->ordinal = ordinal;
	c->submitted = c->completed = c->proven = c->counted = c->synced = c->last_call_ns = c->waited_ns = 0;
	c->tight = c->stream_used = c->blocking = c->asked = 0;
	__builtin_memset(c->busy, 0, sizeof(c->busy));
	seqs = seqs_by_slot.lookup((int *)&slot);
	if (!seqs)
		return FS_NO_SLOT;
	__builtin_memset(seqs->first, 0, sizeof(seqs->first));
	c->gpu = gpu_of(tgid, ordinal, &flags);
	c->flags = flags | FS_CTX_LIVE;
	if (ctx_by_handle.update(&key, &slot))
		count(FS_COUNT_HANDLE_FULL);
	FS_LOOP
	for (int i = 0; i < FS_MAX_PROC_CTXS; i++) {
		if (!kept && !__sync_val_compare_and_swap(&p->slot[i], 0, (fs_u64)slot + 1))
			kept = 1;
	}
	if (!kept) { /* nobody would find it again when the process ends */
		budget = budget_by_owner.lookup(&owner.number);
		if (budget)
			refuse(budget, FS_TABLE_CONTEXTS);
		p->is_refused = 1;
		c->flags = 0;
		ctx_by_handle.delete(&key);
		give_room(owner.number, FS_TABLE_CONTEXTS, room);
		give_back(slot);
		return FS_NO_SLOT;
	}
	p->is_told = 1;
	emit(FS_EDGE_CTX_NEW, slot, c, 0, now, 0, BPF_RB_NO_WAKEUP);
	return slot;
}

/* `entered`: when its end was asked for, which waits for all its work; 0: its process has ended, whatever it had queued. */
static __always_inline void drop_ctx(u32 slot, struct fs_ctx *c, fs_u64 now, fs_u64 entered)
{
	struct handle_key key = {.handle = c->handle, .tgid = c->tgid};

	c->waited_ns = 0;
	if (entered) {
		c->completed = c->proven = c->submitted;
		c->waited_ns = now - entered;
	}
	clear_streams(slot, c, FS_COMPUTE, ~0ULL, now, 0);
	clear_streams(slot, c, FS_COPY, ~0ULL, now, 0);
	c->flags = 0;
	emit(FS_EDGE_CTX_GONE, slot, c, 0, now, c->submitted, BPF_RB_NO_WAKEUP);
	give_room(c->owner, FS_TABLE_CONTEXTS, c->room);
	ctx_by_handle.delete(&key);
	give_back(slot);
}

/*
 * The context the calling thread works in: the one it made current, else the only one of its process, else
 * the one that stands for those we have not seen created; FS_NO_SLOT when there is none.
 */
static __always_inline u32 find_slot(void)
{
	fs_u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32, *slot;
	struct ctx_stack *stack = ctxs_by_thread.lookup(&id);
	struct handle_key key = {.tgid = tgid};
	struct proc *p;

	if (stack && stack->depth) {
		key.handle = stack->handle[(stack->depth - 1) & (FS_MAX_CTX_STACK - 1)];
		slot = ctx_by_handle.lookup(&key);
		if (slot)
			return *slot;
	}
	p = proc_by_tgid.lookup(&tgid);
	if (p && p->is_refused && stack && stack->depth)
		return FS_NO_SLOT; /* one that its tenant had no room for: no other answers for it */
	if (p && p->slot[0] && !p->slot[1])
		return p->slot[0] - 1;
	key.handle = 0;
	slot = ctx_by_handle.lookup(&key);
	return slot ? *slot : FS_NO_SLOT;
}

static __always_inline struct stream_key stream_key(u32 slot, struct fs_ctx *c, fs_u64 stream)
{
	struct stream_key key = {.handle = stream, .slot = slot, .generation = c->generation};

	if (stream == FS_STREAM_PER_THREAD)
		key.tid = (u32)bpf_get_current_pid_tgid();
	return key;
}

/* The index of a stream this context has used, or FS_NO_INDEX. */
static __always_inline u32 find_index(u32 slot, struct fs_ctx *c, fs_u64 stream)
{
	struct stream_key key = stream_key(slot, c, stream);
	u32 *have = index_by_stream.lookup(&key);

	return have ? *have & (FS_MAX_STREAMS - 1) : FS_NO_INDEX;
}

/*
 * A handle that is not known yet may take the place of the one that was used least recently, whoever's that is. So it
 * costs its tenant as much as an edge: at that rate nobody has another's forgotten within seconds.
 */
static __always_inline int admit_handle(struct fs_ctx *c)
{
	return admit_edges(c->owner, 1, bpf_ktime_get_ns());
}

/* The same of a thread that is not known yet; a process that has not told of itself pays as its cgroup's tenant. */
static __always_inline int admit_thread(u32 tgid)
{
	struct proc *p = proc_by_tgid.lookup(&tgid);

	return admit_edges(p ? p->whose >> 8 : find_owner().number, 1, bpf_ktime_get_ns());
}

/* As find_index, and one is given to a stream that has none; FS_NO_INDEX where its tenant has too many. */
static __always_inline u32 add_index(u32 slot, struct fs_ctx *c, fs_u64 stream, fs_u64 is_blocking)
{
	u32 what = FS_COUNT_STREAM_FULL;
	fs_u64 *full = counts_by_what.lookup(&what);
	struct stream_key key = stream_key(slot, c, stream);
	u32 *have = index_by_stream.lookup(&key), index = FS_MAX_STREAMS - 1;
	fs_u64 used;

	if (have)
		return *have & (FS_MAX_STREAMS - 1);
	if (!full || !admit_handle(c))
		return FS_NO_INDEX;
	used = c->stream_used;
	FS_LOOP
	for (int i = 0; i < 8; i++) {
		fs_u64 lowest = ~used & (used + 1); /* lowest unset bit */
		fs_u64 seen;

		if (!lowest || lowest == 1ULL << (FS_MAX_STREAMS - 1)) {
			count(FS_COUNT_STREAM_SHARED);
			break;
		}
		seen = __sync_val_compare_and_swap(&c->stream_used, used, used | lowest);
		if (seen == used) {
			index = 0;
			FS_LOOP
			for (int bit = 32; bit; bit >>= 1) {
				if (lowest >> bit) {
					lowest >>= bit;
					index += bit;
				}
			}
			if (is_blocking)
				__sync_fetch_and_or(&c->blocking, 1ULL << index);
			else
				__sync_fetch_and_and(&c->blocking, ~(1ULL << index));
			break;
		}
		used = seen;
	}
	/* Without a branch: it would double what the verifier has to walk behind it. */
	__sync_fetch_and_add(full, (u32)index_by_stream.update(&key, &index) >> 31);
	return index;
}

#endif
