/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Busy intervals: opening, closing, charging.
 *
 * Concurrency: uprobes run on any CPU, several threads of a process at once. Every decision is the result of
 * one atomic on one word: whoever turns fs_busy.streams from 0 to non-zero opens the interval, whoever turns
 * it back to 0 closes it.
 */
#ifndef FAIRSCHED_BUSY_H
#define FAIRSCHED_BUSY_H

#include "maps.h"
#include "budget.h"
#include "delay.h"

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

/* A burst that was charged `service` waited so long in all: as often as it took a turn. */
static __always_inline void add_delay(struct fs_ctx *c, fs_u64 service, fs_u64 wait)
{
	struct fs_delay_key key = {.cgroup_id = c->charged_id, .gpu = c->gpu};
	int first = 0;
	struct fs_delay *zero = zero_delay.lookup(&first), *d;
	struct fs_limits *limits = limits_of_all.lookup(&first);
	fs_u64 turns;

	if (!zero || !limits)
		return;
	d = delay_by_key.lookup_or_try_init(&key, zero);
	if (!d) {
		count(FS_COUNT_USE_FULL);
		return;
	}
	turns = delay_turns(service, limits->turn_ns);
	__sync_fetch_and_add(&d->bucket[delay_bucket(wait / turns)], turns);
	__sync_fetch_and_add(&d->sum_ns, wait);
}

/* Add `service` to the account of the context and of (cgroup, process, GPU). */
static __always_inline void charge(struct fs_ctx *c, u32 engine, fs_u64 service, fs_u64 wait, fs_u64 bursts)
{
	struct fs_use_key key = {.cgroup_id = c->charged_id, .tgid = c->tgid, .gpu = c->gpu};
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
	fs_u64 v, n, wake = BPF_RB_NO_WAKEUP;
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
	/* Others have filled the GPU meanwhile: whoever comes back to it shall not wait for the next look. */
	if (n && now - b->open_ns > FS_COMEBACK_NS)
		wake = BPF_RB_FORCE_WAKEUP;
	b->v_open_ns = v;
	b->open_ns = now;
	/* The close of it, and a GPU that falls idle with it, are paid for as well: a pair is told whole or not at all. */
	if (admit_edges(c->owner, 3, now)) {
		__sync_fetch_and_and(&c->muted, ~(1ULL << (engine & 1)));
		emit(FS_EDGE_OPEN, slot, c, engine, now, c->submitted, wake);
	} else {
		__sync_fetch_and_or(&c->muted, 1ULL << (engine & 1));
	}
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
	fs_u64 v, n, service, wall, wait, late = 0;
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
	if (v_end && clock_since(v_end, v_open) < service) {
		/* The end of a drain is told late: what n contexts have had of the GPU since is no wait. */
		late = n * (service - clock_since(v_end, v_open));
		service = clock_since(v_end, v_open);
	}
	wall = now > open ? now - open : 0;
	wait = wall > service + late ? wall - service - late : 0;
	__sync_fetch_and_add(&b->wall_ns, wall);
	__sync_fetch_and_add(&b->bursts, 1);
	charge(c, engine, service, wait, 1);
	if (engine == FS_COMPUTE)
		add_delay(c, service, wait);
	if (c->muted >> (engine & 1) & 1)
		return;
	emit(FS_EDGE_CLOSE, slot, c, engine, now, c->proven, BPF_RB_NO_WAKEUP);
	if (n <= clock->wake_on_idle && engine == FS_COMPUTE)
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

/*
 * Charge what is open to the cgroup the process was in, and go on under the one it is in now. Within a tenant it changes
 * only in which cgroup the process is seen; it can do that thousands of times a second, so it is looked at seldom.
 */
static __always_inline void follow_cgroup(struct fs_ctx *c, fs_u64 now)
{
	struct owner owner = find_owner();
	fs_u64 id = bpf_get_current_cgroup_id();
	struct fs_busy *b = &c->busy[FS_COMPUTE];
	u32 gpu = c->gpu;
	struct fs_clock *clock;
	fs_u64 v, v_open = b->v_open_ns;

	if (owner.number != FS_STRANGERS && owner.cgroup_id == c->charged_id &&
	    now - c->followed_ns < FS_FOLLOW_NS)
		return;
	c->followed_ns = now;
	clock = clock_by_gpu.lookup(&gpu);
	if (clock && b->streams && b->open_ns) {
		v = clock_v(clock->word[FS_COMPUTE], now);
		if (__sync_val_compare_and_swap(&b->v_open_ns, v_open, v) == v_open)
			charge(c, FS_COMPUTE, clock_since(v, v_open), 0, 0);
	}
	c->cgroup_id = id;
	c->charged_id = owner.cgroup_id;
}

#endif
