/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Maps of gpu_time.bpf.c and the steps on them: finding a context, opening and closing its busy interval,
 * charging. The programs themselves, one per kind of libcuda call, are in gpu_time.bpf.c.
 *
 * Concurrency: uprobes run on any CPU, several threads of a process at once. Every decision is the result of
 * one atomic on one word: whoever turns fs_busy.streams from 0 to non-zero opens the interval, whoever turns
 * it back to 0 closes it.
 */
#ifndef FAIRSCHED_GPU_TIME_H
#define FAIRSCHED_GPU_TIME_H

#include "clock.h"

#define FS_MMAPABLE 1024 /* BPF_F_MMAPABLE */
#define FS_NO_INDEX 0xffffffffu
/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, the handles that stand for the two default streams */
#define FS_STREAM_LEGACY 1
#define FS_STREAM_PER_THREAD 2

struct handle_key {
	fs_u64 handle;
	fs_u32 tgid;
	fs_u32 pad;
};

struct stream_key {
	fs_u64 handle;
	fs_u32 slot;
	fs_u32 generation;
	fs_u32 tid; /* only for the per-thread default stream */
	fs_u32 pad;
};

/* A place in the work of a context: "everything stream `index` was given up to `seq`". */
struct mark {
	fs_u64 seq;
	fs_u32 slot;
	fs_u32 generation;
	fs_u32 index;
	fs_u32 pad;
};

struct seqs {
	fs_u64 last[FS_MAX_STREAMS]; /* sequence number of the last work of each stream */
};

/* cuStreamWaitEvent: work after `at` on this stream implies `on` is complete. */
struct dep {
	fs_u64 at;
	struct mark on;
};

struct deps {
	struct dep dep[FS_MAX_DEPS];
	fs_u64 next;
};

struct proc {
	fs_u64 slot[FS_MAX_PROC_CTXS]; /* slot + 1; 0 = free */
};

struct ctx_stack {
	fs_u64 handle[FS_MAX_CTX_STACK];
	fs_u64 depth;
};

/* What a thread asked when it entered a call whose answer matters. */
struct call {
	fs_u64 kind;
	fs_u64 arg;  /* handle, or the user pointer the answer is written to */
	fs_u64 arg2; /* ordinal, flags, or when a sync was entered */
	struct mark mark;
};

/* Written here, read by user space through mmap. A slot returns to free_slots when its context dies. */
BPF_F_TABLE("array", u32, struct fs_ctx, ctx_by_slot, FS_MAX_CTXS, FS_MMAPABLE);
BPF_F_TABLE("array", u32, struct fs_clock, clock_by_gpu, FS_MAX_GPUS, FS_MMAPABLE);
BPF_F_TABLE("array", u32, fs_u64, counts_by_what, FS_COUNTS, FS_MMAPABLE);
/* Written here, read by user space one batch a tick; user space deletes the entries of dead processes. */
BPF_HASH(gpu_time_by_key, struct fs_use_key, struct fs_use, FS_MAX_USES);
BPF_HASH(delay_by_key, struct fs_delay_key, struct fs_delay, 4096);
/* Written by user space (what it knows of ordinals and UUIDs), and by on_return for cuDeviceGetUuid. */
BPF_HASH(gpu_by_dev, struct fs_dev_key, u32, FS_MAX_PROCS);
BPF_HASH(gpu_by_uuid, struct fs_uuid, u32, FS_MAX_GPUS);
/* Filled once by user space with every slot number. */
BPF_QUEUESTACK("stack", free_slots, u32, FS_MAX_CTXS, 0);
/* Private. LRU where user code controls the number of keys: the oldest handle is forgotten, nothing breaks. */
BPF_HASH(ctx_by_handle, struct handle_key, u32, 2 * FS_MAX_CTXS);
BPF_HASH(proc_by_tgid, u32, struct proc, FS_MAX_PROCS);
BPF_ARRAY(seqs_by_slot, struct seqs, FS_MAX_CTXS);
BPF_TABLE("lru_hash", struct stream_key, u32, index_by_stream, FS_MAX_HANDLES);
BPF_TABLE("lru_hash", struct handle_key, struct mark, mark_by_event, FS_MAX_HANDLES);
BPF_TABLE("lru_hash", struct mark, struct deps, deps_by_stream, 4096);
BPF_TABLE("lru_hash", u64, struct ctx_stack, ctxs_by_thread, FS_MAX_HANDLES);
BPF_TABLE("lru_hash", u64, struct call, call_by_thread, FS_MAX_HANDLES);
BPF_RINGBUF_OUTPUT(edges, FS_EDGE_PAGES);
/* Initial values too large for the 512 bytes of BPF stack. Never written. */
BPF_ARRAY(zero_delay, struct fs_delay, 1);
BPF_ARRAY(zero_deps, struct deps, 1);

static __always_inline void count(u32 what)
{
	fs_u64 *n = counts_by_what.lookup(&what);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline void emit(u32 kind, u32 slot, struct fs_ctx *c, u32 engine, fs_u64 now, fs_u64 seq,
				 fs_u64 wake)
{
	struct fs_edge e = {};

	e.t_ns = now;
	e.seq = seq;
	e.slot = slot;
	e.kind = kind;
	e.engine = engine;
	if (c) {
		e.cgroup_id = c->cgroup_id;
		e.arg = kind == FS_EDGE_CLOSE || kind == FS_EDGE_PROGRESS ? c->waited_ns : c->handle;
		e.generation = c->generation;
		e.tgid = c->tgid;
		e.gpu = c->gpu;
	} else {
		e.cgroup_id = bpf_get_current_cgroup_id();
		e.tgid = bpf_get_current_pid_tgid() >> 32;
		e.gpu = FS_NO_GPU;
	}
	if (edges.ringbuf_output(&e, sizeof(e), wake))
		count(FS_COUNT_EDGE_DROPPED);
}

static __always_inline void add_delay(struct fs_ctx *c, fs_u64 wait)
{
	struct fs_delay_key key = {.cgroup_id = c->cgroup_id, .gpu = c->gpu};
	u32 i = 0;
	struct fs_delay *zero = zero_delay.lookup((int *)&i), *d;
	fs_u64 rest = wait;

	if (!zero)
		return;
	d = delay_by_key.lookup_or_try_init(&key, zero);
	if (!d) {
		count(FS_COUNT_USE_FULL);
		return;
	}
	FS_LOOP
	for (int bit = 32; bit; bit >>= 1) {
		if (rest >> bit) {
			rest >>= bit;
			i += bit;
		}
	}
	if (i >= FS_DELAY_BUCKETS)
		i = FS_DELAY_BUCKETS - 1;
	__sync_fetch_and_add(&d->bucket[i], 1);
	__sync_fetch_and_add(&d->sum_ns, wait);
}

/* Add `service` to the account of the context and of (cgroup, process, GPU). */
static __always_inline void charge(struct fs_ctx *c, u32 engine, fs_u64 service, fs_u64 wait, fs_u64 bursts)
{
	struct fs_use_key key = {.cgroup_id = c->cgroup_id, .tgid = c->tgid, .gpu = c->gpu};
	struct fs_use zero = {}, *use;
	fs_u64 submitted = c->submitted;
	fs_u64 counted = __sync_lock_test_and_set(&c->counted, submitted);

	if (engine == FS_COPY)
		__sync_fetch_and_add(&c->busy[FS_COPY].gpu_time_ns, service);
	else
		__sync_fetch_and_add(&c->busy[FS_COMPUTE].gpu_time_ns, service);
	use = gpu_time_by_key.lookup_or_try_init(&key, &zero);
	if (!use) {
		count(FS_COUNT_USE_FULL);
		return;
	}
	if (submitted > counted)
		__sync_fetch_and_add(&use->launches, submitted - counted);
	if (engine == FS_COPY) {
		__sync_fetch_and_add(&use->copy_time_ns, service);
		return;
	}
	__sync_fetch_and_add(&use->gpu_time_ns, service);
	__sync_fetch_and_add(&use->wait_ns, wait);
	__sync_fetch_and_add(&use->bursts, bursts);
}

/* The interval of `c` on `engine` opens now. Only for the caller that turned busy.streams from 0. */
static __always_inline void open_busy(u32 slot, struct fs_ctx *c, u32 engine, fs_u64 now)
{
	struct fs_busy *b = &c->busy[engine & 1];
	u32 gpu = c->gpu;
	struct fs_clock *clock = clock_by_gpu.lookup(&gpu);
	fs_u64 v, n;
	int err;

	if (!clock)
		return;
	err = clock_step(&clock->word[engine & 1], 1, now, &v, &n);
	if (err) {
		count(err);
		b->open_ns = 0; /* close_busy must not take back an n that was never added */
		return;
	}
	if (!n)
		clock->busy_open_ns[engine & 1] = now;
	b->v_open_ns = v;
	b->open_ns = now;
	emit(FS_EDGE_OPEN, slot, c, engine, now, c->submitted, BPF_RB_NO_WAKEUP);
}

/*
 * The interval of `c` on `engine` ends now, or ended when V was `v_end` (a drain; 0 = now).
 * `v_open` and `open` were read before busy.streams fell to 0: from then on another CPU may open the next.
 */
static __always_inline void close_busy(u32 slot, struct fs_ctx *c, u32 engine, fs_u64 now, fs_u64 v_open,
				       fs_u64 open, fs_u64 v_end)
{
	struct fs_busy *b = &c->busy[engine & 1];
	u32 gpu = c->gpu;
	struct fs_clock *clock = clock_by_gpu.lookup(&gpu);
	fs_u64 v, n, service, wall, wait;
	int err;

	if (!clock || !open)
		return;
	err = clock_step(&clock->word[engine & 1], -1, now, &v, &n);
	if (err) {
		count(err);
		return;
	}
	if (n == 1 && now > clock->busy_open_ns[engine & 1])
		__sync_fetch_and_add(&clock->busy_ns[engine & 1], now - clock->busy_open_ns[engine & 1]);
	service = clock_since(v, v_open);
	if (v_end && clock_since(v_end, v_open) < service)
		service = clock_since(v_end, v_open);
	wall = now > open ? now - open : 0;
	wait = wall > service ? wall - service : 0;
	__sync_fetch_and_add(&b->wall_ns, wall);
	__sync_fetch_and_add(&b->bursts, 1);
	charge(c, engine, service, wait, 1);
	if (engine == FS_COMPUTE)
		add_delay(c, wait);
	emit(FS_EDGE_CLOSE, slot, c, engine, now, c->completed, BPF_RB_NO_WAKEUP);
	if (n == 1 && engine == FS_COMPUTE && clock->wake_on_idle)
		emit(FS_EDGE_GPU_IDLE, slot, c, engine, now, 0, BPF_RB_FORCE_WAKEUP);
}

/* Take `gone` out of the outstanding streams; close the interval if they were the last. */
static __always_inline void clear_streams(u32 slot, struct fs_ctx *c, u32 engine, fs_u64 gone, fs_u64 now,
					  fs_u64 v_end)
{
	struct fs_busy *b = &c->busy[engine & 1];
	fs_u64 v_open = b->v_open_ns, open = b->open_ns;
	fs_u64 old = __sync_fetch_and_and(&b->streams, ~gone);

	if (old && !(old & ~gone))
		close_busy(slot, c, engine, now, v_open, open, v_end);
}

static __always_inline void set_stream(u32 slot, struct fs_ctx *c, u32 engine, fs_u64 bit, fs_u64 now)
{
	if (!__sync_fetch_and_or(&c->busy[engine & 1].streams, bit))
		open_busy(slot, c, engine, now);
}

/* Charge what is open to the cgroup the process was in, and go on under the one it is in now. */
static __always_inline void follow_cgroup(struct fs_ctx *c, fs_u64 now)
{
	fs_u64 id = bpf_get_current_cgroup_id();
	struct fs_busy *b = &c->busy[FS_COMPUTE];
	u32 gpu = c->gpu;
	struct fs_clock *clock;
	fs_u64 v, v_open = b->v_open_ns;

	if (c->cgroup_id == id)
		return;
	clock = clock_by_gpu.lookup(&gpu);
	if (clock && b->streams && b->open_ns) {
		v = clock_v(clock->word[FS_COMPUTE], now);
		if (__sync_val_compare_and_swap(&b->v_open_ns, v_open, v) == v_open)
			charge(c, FS_COMPUTE, clock_since(v, v_open), 0, 0);
	}
	c->cgroup_id = id;
}

static __always_inline struct fs_ctx *ctx_at(u32 slot)
{
	return ctx_by_slot.lookup(&slot);
}

/* Which GPU an ordinal of this process is; the ordinal itself, and a count, until anybody has said. */
static __always_inline u32 gpu_of(u32 tgid, u32 ordinal, fs_u16 *flags)
{
	struct fs_dev_key key = {.tgid = tgid, .ordinal = ordinal};
	u32 *gpu = gpu_by_dev.lookup(&key);

	if (gpu && *gpu < FS_MAX_GPUS)
		return *gpu;
	*flags |= FS_CTX_GPU_GUESSED;
	count(FS_COUNT_GPU_GUESSED);
	return ordinal < FS_MAX_GPUS ? ordinal : 0;
}

/* Give a context of this process a slot; FS_NO_SLOT when there is none left. */
static __always_inline u32 add_ctx(u32 tgid, fs_u64 handle, u32 ordinal, fs_u16 flags)
{
	struct handle_key key = {.handle = handle, .tgid = tgid};
	struct proc fresh = {}, *p;
	struct fs_ctx *c;
	u32 slot, *have = ctx_by_handle.lookup(&key);
	int kept = 0;

	if (have)
		return *have; /* a primary context that is retained again */
	p = proc_by_tgid.lookup_or_try_init(&tgid, &fresh);
	if (!p) {
		count(FS_COUNT_PROC_FULL);
		return FS_NO_SLOT;
	}
	if (free_slots.pop(&slot)) {
		count(FS_COUNT_CTX_FULL);
		return FS_NO_SLOT;
	}
	c = ctx_at(slot);
	if (!c)
		return FS_NO_SLOT;
	c->handle = handle;
	c->cgroup_id = bpf_get_current_cgroup_id();
	c->tgid = tgid;
	c->generation++;
	c->ordinal = ordinal;
	c->submitted = c->completed = c->counted = c->synced = c->last_call_ns = c->waited_ns = 0;
	c->stream_used = c->blocking = 0;
	__builtin_memset(c->busy, 0, sizeof(c->busy));
	c->gpu = gpu_of(tgid, ordinal, &flags);
	c->flags = flags | FS_CTX_LIVE;
	if (ctx_by_handle.update(&key, &slot))
		count(FS_COUNT_HANDLE_FULL);
	FS_LOOP
	for (int i = 0; i < FS_MAX_PROC_CTXS; i++) {
		if (!kept && !__sync_val_compare_and_swap(&p->slot[i], 0, (fs_u64)slot + 1))
			kept = 1;
	}
	if (!kept)
		count(FS_COUNT_PROC_FULL);
	emit(FS_EDGE_CTX_NEW, slot, c, 0, bpf_ktime_get_ns(), 0, BPF_RB_NO_WAKEUP);
	return slot;
}

static __always_inline void drop_ctx(u32 slot, struct fs_ctx *c, fs_u64 now)
{
	struct handle_key key = {.handle = c->handle, .tgid = c->tgid};

	c->waited_ns = 0;
	clear_streams(slot, c, FS_COMPUTE, ~0ULL, now, 0);
	clear_streams(slot, c, FS_COPY, ~0ULL, now, 0);
	c->flags = 0;
	emit(FS_EDGE_CTX_GONE, slot, c, 0, now, 0, BPF_RB_NO_WAKEUP);
	ctx_by_handle.delete(&key);
	free_slots.push(&slot, BPF_EXIST);
}

/*
 * The context the calling thread works in: the one it made current, else the only one of its process, else
 * the one that stands for those we have not seen created; FS_NO_SLOT when there is none yet.
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

static __always_inline u32 add_index(u32 slot, struct fs_ctx *c, fs_u64 stream, fs_u64 is_blocking)
{
	struct stream_key key = stream_key(slot, c, stream);
	u32 *have = index_by_stream.lookup(&key), index = FS_MAX_STREAMS - 1;
	fs_u64 used;

	if (have)
		return *have & (FS_MAX_STREAMS - 1);
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
	index_by_stream.update(&key, &index);
	return index;
}

#endif
