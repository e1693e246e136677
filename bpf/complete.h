/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What leads to completion: *_enter remember what was asked, proofs.h acts on the answer. Events and waits tie streams
 * together.
 */
#ifndef FAIRSCHED_COMPLETE_H
#define FAIRSCHED_COMPLETE_H

#include "submit.h"

/*
 * As remember(). Whoever asks again and again (cuEventQuery in a loop) has waited since it asked first: until then the
 * same work was not done. Asking less often than every FS_PAUSE_NS is no waiting: the answer may be as late.
 */
static __always_inline void remember_sync(fs_u64 kind, fs_u64 arg, struct mark *m)
{
	fs_u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns(), since = now;
	struct call *before = call_by_thread.lookup(&id);

	if (before && !before->kind && before->refused_ns && now - before->refused_ns < FS_PAUSE_NS &&
	    before->mark.slot == m->slot && before->mark.generation == m->generation &&
	    before->mark.index == m->index && before->mark.seq == m->seq)
		since = before->arg2;
	remember(kind, arg, since, m);
}

/* Where the stream stands now; its index is FS_NO_INDEX when nothing was ever submitted to it. */
static __always_inline void mark_stream(struct mark *m, u32 slot, struct fs_ctx *c, fs_u64 stream)
{
	m->slot = slot;
	m->generation = c->generation;
	m->index = find_index(slot, c, stream);
	m->seq = c->submitted;
}

static __always_inline void stream_enter(fs_u64 stream)
{
	u32 slot = find_slot();
	struct fs_ctx *c = ctx_at(slot);
	struct mark m = {};

	if (!c)
		return;
	mark_stream(&m, slot, c, stream);
	m.waits = ~0U;
	/* The legacy default stream answers for others even when it has no work of its own. */
	if (m.index != FS_NO_INDEX || stream == FS_STREAM_LEGACY)
		remember_sync(CALL_STREAM_SYNC, stream, &m);
}

int on_sync_stream(struct pt_regs *ctx)
{
	stay_on_stack(ctx);
	stream_enter(plain_stream(PT_REGS_PARM1(ctx), 0));
	return 0;
}

int on_sync_stream_pt(struct pt_regs *ctx)
{
	stay_on_stack(ctx);
	stream_enter(plain_stream(PT_REGS_PARM1(ctx), 1));
	return 0;
}

/*
 * A synchronous copy or memset proves the default stream complete when it returns. Its own copy time is not
 * counted: it is over before anybody could be held for it.
 */
int on_sync_copy(struct pt_regs *ctx)
{
	stay_on_stack(ctx);
	stream_enter(FS_STREAM_LEGACY);
	return 0;
}

int on_sync_copy_pt(struct pt_regs *ctx)
{
	stay_on_stack(ctx);
	stream_enter(FS_STREAM_PER_THREAD);
	return 0;
}

int on_sync_ctx(struct pt_regs *ctx)
{
	u32 slot = find_slot();
	struct fs_ctx *c = ctx_at(slot);
	struct mark m = {};

	stay_on_stack(ctx);
	if (!c)
		return 0;
	m.slot = slot;
	m.generation = c->generation;
	m.seq = c->submitted;
	remember_sync(CALL_CTX_SYNC, 0, &m);
	return 0;
}

/*
 * Where the marks of such an event are. Each tenant has a part of the table and nobody else writes there: one that makes
 * marks without end has its own forgotten.
 */
static __always_inline struct marks *marks_of(struct handle_key *key)
{
	struct proc *p = proc_by_tgid.lookup(&key->tgid);
	int first = 0;
	struct fs_limits *limits = limits_of_all.lookup(&first);
	fs_u64 whose, parts;
	u32 place;

	if (!p || !limits || !key->handle)
		return 0;
	whose = p->whose >> 8;
	parts = 1ULL << (limits->mark_bits & 15);
	/* The upper half of a product with the golden ratio: handles are addresses, of which the lower bits are alike. */
	place = ((key->handle ^ (fs_u64)key->tgid << 40) * 0x9e3779b97f4a7c15ULL) >> 40;
	place = (place & (FS_MARK_PLACES / parts - 1)) + (whose & (parts - 1)) * (FS_MARK_PLACES / parts);
	return marks_by_place.lookup((int *)&place);
}

static __always_inline struct mark *find_mark(struct marks *marks, struct handle_key *key, fs_u64 now)
{
	FS_LOOP
	for (int i = 0; i < FS_MARK_WAYS; i++) {
		if (marks->way[i].key.handle == key->handle && marks->way[i].key.tgid == key->tgid) {
			marks->way[i].used_ns = now;
			return &marks->way[i].mark;
		}
	}
	return 0;
}

/* Two at once may take one way, and what is kept may be half of each: of one tenant, which can lie about its work anyway. */
static __always_inline void keep_mark(struct marks *marks, struct handle_key *key, struct mark *mark,
				      fs_u64 now)
{
	u32 oldest = 0;

	FS_LOOP
	for (int i = 1; i < FS_MARK_WAYS; i++) {
		if (marks->way[i].used_ns < marks->way[oldest & (FS_MARK_WAYS - 1)].used_ns)
			oldest = i;
	}
	oldest &= FS_MARK_WAYS - 1;
	marks->way[oldest].key.handle = 0;
	marks->way[oldest].mark = *mark;
	marks->way[oldest].used_ns = now;
	marks->way[oldest].key = *key;
}

int on_sync_event(struct pt_regs *ctx)
{
	struct handle_key key = {.handle = PT_REGS_PARM1(ctx), .tgid = bpf_get_current_pid_tgid() >> 32};
	struct marks *marks = marks_of(&key);
	struct mark *m = marks ? find_mark(marks, &key, bpf_ktime_get_ns()) : 0;

	stay_on_stack(ctx);
	if (m)
		remember_sync(CALL_EVENT_SYNC, key.handle, m);
	else
		count(FS_COUNT_EVENT_UNKNOWN);
	return 0;
}

/* ---- link ---- */

static __always_inline void record_event(fs_u64 event, fs_u64 stream)
{
	struct handle_key key = {.handle = event, .tgid = bpf_get_current_pid_tgid() >> 32};
	u32 slot = find_slot();
	struct fs_ctx *c = ctx_at(slot);
	struct mark m = {}, key_of_deps, *known;
	struct marks *marks = marks_of(&key);
	fs_u64 now = bpf_ktime_get_ns();
	struct deps *deps;

	if (!c || !marks)
		return;
	known = find_mark(marks, &key, now);
	if (!known && !admit_handle(c))
		return;
	mark_stream(&m, slot, c, stream);
	key_of_deps = m;
	key_of_deps.seq = 0;
	deps = deps_by_stream.lookup(&key_of_deps);
	if (deps)
		m.waits = deps->next;
	if (known)
		*known = m;
	else
		keep_mark(marks, &key, &m, now);
}

int on_record(struct pt_regs *ctx)
{
	stay_on_stack(ctx);
	record_event(PT_REGS_PARM1(ctx), plain_stream(PT_REGS_PARM2(ctx), 0));
	return 0;
}

int on_record_pt(struct pt_regs *ctx)
{
	stay_on_stack(ctx);
	record_event(PT_REGS_PARM1(ctx), plain_stream(PT_REGS_PARM2(ctx), 1));
	return 0;
}

static __always_inline void wait_event(fs_u64 stream, fs_u64 event)
{
	struct handle_key key = {.handle = event, .tgid = bpf_get_current_pid_tgid() >> 32};
	struct marks *marks = marks_of(&key);
	struct mark *on = marks ? find_mark(marks, &key, bpf_ktime_get_ns()) : 0, m = {};
	u32 slot = find_slot(), zero = 0;
	struct fs_ctx *c = ctx_at(slot);
	struct deps *deps, *init = zero_deps.lookup((int *)&zero);
	struct dep *dep;

	if (!on)
		count(FS_COUNT_EVENT_UNKNOWN);
	if (!on || !c || !init)
		return;
	m.slot = slot;
	m.generation = c->generation;
	m.index =
		add_index(slot, c, stream, stream <= FS_STREAM_PER_THREAD); /* seq 0: the stream, no moment */
	if (m.index == FS_NO_INDEX)
		return;
	deps = deps_by_stream.lookup(&m);
	if (!deps && admit_handle(c))
		deps = deps_by_stream.lookup_or_try_init(&m, init);
	if (!deps) {
		count(FS_COUNT_DEP_DROPPED);
		return;
	}
	dep = &deps->dep[deps->next++ & (FS_MAX_DEPS - 1)];
	if (dep->at > c->completed)
		count(FS_COUNT_DEP_DROPPED);
	dep->on = *on;
	dep->at = c->submitted;
}

int on_wait(struct pt_regs *ctx)
{
	stay_on_stack(ctx);
	wait_event(plain_stream(PT_REGS_PARM1(ctx), 0), PT_REGS_PARM2(ctx));
	return 0;
}

int on_wait_pt(struct pt_regs *ctx)
{
	stay_on_stack(ctx);
	wait_event(plain_stream(PT_REGS_PARM1(ctx), 1), PT_REGS_PARM2(ctx));
	return 0;
}

#endif
