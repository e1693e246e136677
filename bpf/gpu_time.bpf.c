/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * GPU time per (cgroup, process, GPU) from the entry points of libcuda.
 *
 * Every submit opens the busy interval of its context, every call that proves completion closes what it
 * covers. on_submit_* run at entry (a launch counts from the moment it is asked for); on_*_enter remember what
 * was asked, on_return acts on the answer. Which export gets which program is decided by exports.py.
 *
 * Suffixes: aN = the stream is argument N, cfg = it is in the launch configuration; _pt = the spelling whose
 * stream 0 is the per-thread default stream.
 */
#include "gpu_time.h"

#define CUDA_SUCCESS 0
#define STREAM_NON_BLOCKING 1
#define LAUNCH_CONFIG_STREAM 32 /* offset of hStream in CUlaunchConfig */
#define LAUNCH_PARAMS_STREAM 40 /* and in CUDA_LAUNCH_PARAMS; the first device stands for all */

enum call_kind {
	CALL_SUBMIT = 1,
	CALL_STREAM_SYNC,
	CALL_CTX_SYNC,
	CALL_EVENT_SYNC,
	CALL_CTX_NEW,
	CALL_CTX_SET,
	CALL_CTX_PUSH,
	CALL_CTX_POP,
	CALL_CTX_GET,
	CALL_CTX_DROP,
	CALL_DEV_RESET,
	CALL_STREAM_NEW,
	CALL_DEV_UUID,
};

/* ---- submit ---- */

static __always_inline fs_u64 plain_stream(fs_u64 stream, int per_thread)
{
	if (stream)
		return stream;
	return per_thread ? FS_STREAM_PER_THREAD : FS_STREAM_LEGACY;
}

static __always_inline void remember(fs_u64 kind, fs_u64 arg, fs_u64 arg2, struct mark *mark)
{
	fs_u64 id = bpf_get_current_pid_tgid();
	struct call call = {.kind = kind, .arg = arg, .arg2 = arg2};

	if (mark)
		call.mark = *mark;
	if (call_by_thread.update(&id, &call))
		count(FS_COUNT_CALL_LOST);
}

static __always_inline void submit_to(u32 slot, struct fs_ctx *c, u32 index, u32 engine)
{
	fs_u64 now = bpf_ktime_get_ns();
	struct seqs *seqs = seqs_by_slot.lookup((int *)&slot);

	if (!seqs)
		return;
	follow_cgroup(c, now);
	c->last_call_ns = now;
	seqs->last[index & (FS_MAX_STREAMS - 1)] = __sync_fetch_and_add(&c->submitted, 1) + 1;
	set_stream(slot, c, engine, 1ULL << (index & (FS_MAX_STREAMS - 1)), now);
}

/* The first work of a context or stream takes the long way, once: it keeps every other launch short. */
BPF_PROG_ARRAY(long_ways, 1);
#define LONG_WAY_SUBMIT 0

int on_submit_first(struct pt_regs *ctx)
{
	fs_u64 id = bpf_get_current_pid_tgid();
	struct call *call = call_by_thread.lookup(&id);
	u32 slot = find_slot();
	struct fs_ctx *c;

	if (!call || call->kind != CALL_SUBMIT)
		return 0;
	call->kind = 0;
	if (slot == FS_NO_SLOT)
		slot = add_ctx(id >> 32, 0, 0, FS_CTX_UNSEEN);
	c = ctx_at(slot);
	if (!c)
		return 0;
	submit_to(slot, c, add_index(slot, c, call->arg, call->arg <= FS_STREAM_PER_THREAD), call->arg2);
	return 0;
}

static __always_inline void submit(struct pt_regs *ctx, fs_u64 stream, u32 engine)
{
	u32 slot = find_slot(), index = FS_NO_INDEX;
	struct fs_ctx *c = ctx_at(slot);

	if (c)
		index = find_index(slot, c, stream);
	if (!c || index == FS_NO_INDEX) {
		remember(CALL_SUBMIT, stream, engine, 0);
		long_ways.call(ctx, LONG_WAY_SUBMIT);
		count(FS_COUNT_CALL_LOST);
		return;
	}
	submit_to(slot, c, index, engine);
}

static __always_inline fs_u64 stack_arg(struct pt_regs *ctx, int n)
{
	fs_u64 value = 0;

	/* [sp] is the return address: the probe sits before the first push */
	if (bpf_probe_read_user(&value, sizeof(value), (void *)(PT_REGS_SP(ctx) + 8 * (n - 6))))
		count(FS_COUNT_BAD_READ);
	return value;
}

static __always_inline fs_u64 pointed_stream(struct pt_regs *ctx, int offset)
{
	fs_u64 value = 0;

	if (bpf_probe_read_user(&value, sizeof(value), (void *)(PT_REGS_PARM1(ctx) + offset)))
		count(FS_COUNT_BAD_READ);
	return value;
}

/* One function an expansion: bcc 0.18 finds only the first of several at one place. */
#define SUBMIT(name, engine, stream, per_thread)                       \
	int name(struct pt_regs *ctx)                                  \
	{                                                              \
		submit(ctx, plain_stream(stream, per_thread), engine); \
		return 0;                                              \
	}

SUBMIT(on_submit_a2, FS_COMPUTE, PT_REGS_PARM2(ctx), 0)
SUBMIT(on_submit_a2_pt, FS_COMPUTE, PT_REGS_PARM2(ctx), 1)
SUBMIT(on_submit_a4, FS_COMPUTE, PT_REGS_PARM4(ctx), 0)
SUBMIT(on_submit_a4_pt, FS_COMPUTE, PT_REGS_PARM4(ctx), 1)
SUBMIT(on_submit_a6, FS_COMPUTE, PT_REGS_PARM6(ctx), 0)
SUBMIT(on_submit_a6_pt, FS_COMPUTE, PT_REGS_PARM6(ctx), 1)
SUBMIT(on_submit_a9, FS_COMPUTE, stack_arg(ctx, 9), 0)
SUBMIT(on_submit_a9_pt, FS_COMPUTE, stack_arg(ctx, 9), 1)
SUBMIT(on_submit_cfg, FS_COMPUTE, pointed_stream(ctx, LAUNCH_CONFIG_STREAM), 0)
SUBMIT(on_submit_cfg_pt, FS_COMPUTE, pointed_stream(ctx, LAUNCH_CONFIG_STREAM), 1)
SUBMIT(on_submit_multi, FS_COMPUTE, pointed_stream(ctx, LAUNCH_PARAMS_STREAM), 0)
SUBMIT(on_submit_multi_pt, FS_COMPUTE, pointed_stream(ctx, LAUNCH_PARAMS_STREAM), 1)
/* Work that occupies a stream but no compute engine: copies, host functions, waits for memory values. */
SUBMIT(on_copy_a1, FS_COPY, PT_REGS_PARM1(ctx), 0)
SUBMIT(on_copy_a1_pt, FS_COPY, PT_REGS_PARM1(ctx), 1)
SUBMIT(on_copy_a2, FS_COPY, PT_REGS_PARM2(ctx), 0)
SUBMIT(on_copy_a2_pt, FS_COPY, PT_REGS_PARM2(ctx), 1)
SUBMIT(on_copy_a3, FS_COPY, PT_REGS_PARM3(ctx), 0)
SUBMIT(on_copy_a3_pt, FS_COPY, PT_REGS_PARM3(ctx), 1)
SUBMIT(on_copy_a4, FS_COPY, PT_REGS_PARM4(ctx), 0)
SUBMIT(on_copy_a4_pt, FS_COPY, PT_REGS_PARM4(ctx), 1)
SUBMIT(on_copy_a5, FS_COPY, PT_REGS_PARM5(ctx), 0)
SUBMIT(on_copy_a5_pt, FS_COPY, PT_REGS_PARM5(ctx), 1)
SUBMIT(on_copy_a6, FS_COPY, PT_REGS_PARM6(ctx), 0)
SUBMIT(on_copy_a6_pt, FS_COPY, PT_REGS_PARM6(ctx), 1)
SUBMIT(on_copy_a8, FS_COPY, stack_arg(ctx, 8), 0)
SUBMIT(on_copy_a8_pt, FS_COPY, stack_arg(ctx, 8), 1)
SUBMIT(on_copy_a9, FS_COPY, stack_arg(ctx, 9), 0)
SUBMIT(on_copy_a9_pt, FS_COPY, stack_arg(ctx, 9), 1)

/* ---- complete ---- */

/* Which of the streams `candidates` have nothing beyond `seq`. Without branches: the verifier walks each. */
static __always_inline fs_u64 finished(struct seqs *seqs, fs_u64 candidates, fs_u64 seq)
{
	fs_u64 done = 0;

	FS_LOOP
	for (int i = 0; i < FS_MAX_STREAMS; i++)
		done |= (~(seq - seqs->last[i]) >> 63) << i;
	return done & candidates;
}

/*
 * `seq` is proven complete for the streams in `covered`. A submit that raced with the clearing is put back:
 * its bit may have been cleared between its sequence number and its own set_stream.
 */
static __always_inline void complete(u32 slot, struct fs_ctx *c, fs_u64 covered, fs_u64 seq, fs_u64 now,
				     fs_u64 entered)
{
	struct seqs *seqs = seqs_by_slot.lookup((int *)&slot);
	fs_u64 busy, gone, late, before = c->completed;

	if (!seqs)
		return;
	if (seq > before)
		c->completed = seq;
	c->synced++;
	c->last_call_ns = now;
	c->waited_ns = now - entered;
	busy = c->busy[FS_COMPUTE].streams | c->busy[FS_COPY].streams;
	gone = finished(seqs, busy & covered, seq);
	if (!gone) {
		if (seq > before)
			emit(FS_EDGE_PROGRESS, slot, c, FS_COMPUTE, now, seq, BPF_RB_NO_WAKEUP);
		return;
	}
	clear_streams(slot, c, FS_COMPUTE, gone, now, 0);
	clear_streams(slot, c, FS_COPY, gone, now, 0);
	if (c->submitted > seq) {
		late = gone & ~finished(seqs, gone, seq);
		if (late)
			set_stream(slot, c, FS_COMPUTE, late, now);
	}
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
	/* The legacy default stream answers for others even when it has no work of its own. */
	if (m.index != FS_NO_INDEX || stream == FS_STREAM_LEGACY)
		remember(CALL_STREAM_SYNC, stream, bpf_ktime_get_ns(), &m);
}

int on_sync_stream(struct pt_regs *ctx)
{
	stream_enter(plain_stream(PT_REGS_PARM1(ctx), 0));
	return 0;
}

int on_sync_stream_pt(struct pt_regs *ctx)
{
	stream_enter(plain_stream(PT_REGS_PARM1(ctx), 1));
	return 0;
}

/*
 * A synchronous copy or memset proves the default stream complete when it returns. Its own copy time is not
 * counted: it is over before anybody could be held for it.
 */
int on_sync_copy(struct pt_regs *ctx)
{
	stream_enter(FS_STREAM_LEGACY);
	return 0;
}

int on_sync_copy_pt(struct pt_regs *ctx)
{
	stream_enter(FS_STREAM_PER_THREAD);
	return 0;
}

int on_sync_ctx(struct pt_regs *ctx)
{
	u32 slot = find_slot();
	struct fs_ctx *c = ctx_at(slot);
	struct mark m = {};

	if (!c)
		return 0;
	m.slot = slot;
	m.generation = c->generation;
	m.seq = c->submitted;
	remember(CALL_CTX_SYNC, 0, bpf_ktime_get_ns(), &m);
	return 0;
}

int on_sync_event(struct pt_regs *ctx)
{
	struct handle_key key = {.handle = PT_REGS_PARM1(ctx), .tgid = bpf_get_current_pid_tgid() >> 32};
	struct mark *m = mark_by_event.lookup(&key);

	if (m)
		remember(CALL_EVENT_SYNC, key.handle, bpf_ktime_get_ns(), m);
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
	struct mark m = {};

	if (!c)
		return;
	mark_stream(&m, slot, c, stream);
	if (mark_by_event.update(&key, &m))
		count(FS_COUNT_HANDLE_FULL);
}

int on_record(struct pt_regs *ctx)
{
	record_event(PT_REGS_PARM1(ctx), plain_stream(PT_REGS_PARM2(ctx), 0));
	return 0;
}

int on_record_pt(struct pt_regs *ctx)
{
	record_event(PT_REGS_PARM1(ctx), plain_stream(PT_REGS_PARM2(ctx), 1));
	return 0;
}

static __always_inline void wait_event(fs_u64 stream, fs_u64 event)
{
	struct handle_key key = {.handle = event, .tgid = bpf_get_current_pid_tgid() >> 32};
	struct mark *on = mark_by_event.lookup(&key), m = {};
	u32 slot = find_slot(), zero = 0;
	struct fs_ctx *c = ctx_at(slot);
	struct deps *deps, *init = zero_deps.lookup((int *)&zero);
	struct dep *dep;

	if (!on || !c || !init)
		return;
	m.slot = slot;
	m.generation = c->generation;
	m.index =
		add_index(slot, c, stream, stream <= FS_STREAM_PER_THREAD); /* seq 0: the stream, no moment */
	deps = deps_by_stream.lookup_or_try_init(&m, init);
	if (!deps)
		return;
	dep = &deps->dep[deps->next++ & (FS_MAX_DEPS - 1)];
	if (dep->at > c->completed)
		count(FS_COUNT_DEP_DROPPED);
	dep->on = *on;
	dep->at = c->submitted;
}

int on_wait(struct pt_regs *ctx)
{
	wait_event(plain_stream(PT_REGS_PARM1(ctx), 0), PT_REGS_PARM2(ctx));
	return 0;
}

int on_wait_pt(struct pt_regs *ctx)
{
	wait_event(plain_stream(PT_REGS_PARM1(ctx), 1), PT_REGS_PARM2(ctx));
	return 0;
}

/* ---- contexts and devices ---- */

int on_init(struct pt_regs *ctx)
{
	emit(FS_EDGE_PROC_NEW, FS_NO_SLOT, 0, 0, bpf_ktime_get_ns(), 0, BPF_RB_FORCE_WAKEUP);
	return 0;
}

#define REMEMBER(name, kind, arg, arg2)       \
	int name(struct pt_regs *ctx)         \
	{                                     \
		remember(kind, arg, arg2, 0); \
		return 0;                     \
	}

REMEMBER(on_ctx_new_a2, CALL_CTX_NEW, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx))
REMEMBER(on_ctx_new_a3, CALL_CTX_NEW, PT_REGS_PARM1(ctx), PT_REGS_PARM3(ctx))
REMEMBER(on_ctx_new_a4, CALL_CTX_NEW, PT_REGS_PARM1(ctx), PT_REGS_PARM4(ctx))
REMEMBER(on_ctx_new_a5, CALL_CTX_NEW, PT_REGS_PARM1(ctx), PT_REGS_PARM5(ctx))
REMEMBER(on_ctx_set, CALL_CTX_SET, PT_REGS_PARM1(ctx), 0)
REMEMBER(on_ctx_push, CALL_CTX_PUSH, PT_REGS_PARM1(ctx), 0)
REMEMBER(on_ctx_pop, CALL_CTX_POP, 0, 0)
REMEMBER(on_ctx_get, CALL_CTX_GET, PT_REGS_PARM1(ctx), 0)
REMEMBER(on_ctx_drop, CALL_CTX_DROP, PT_REGS_PARM1(ctx), 0)
REMEMBER(on_dev_reset, CALL_DEV_RESET, 0, PT_REGS_PARM1(ctx))
REMEMBER(on_stream_new, CALL_STREAM_NEW, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx))
REMEMBER(on_dev_uuid, CALL_DEV_UUID, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx))

int on_stream_drop(struct pt_regs *ctx)
{
	u32 slot = find_slot(), *index;
	struct fs_ctx *c = ctx_at(slot);
	struct stream_key key = {.handle = PT_REGS_PARM1(ctx), .slot = slot};

	if (!c)
		return 0;
	key.generation = c->generation;
	index = index_by_stream.lookup(&key);
	/* Its work goes on: the index may be given out again only when nothing of it is outstanding. */
	if (index && !((c->busy[FS_COMPUTE].streams | c->busy[FS_COPY].streams) >> (*index & 63) & 1)) {
		if (*index < FS_MAX_STREAMS - 1)
			__sync_fetch_and_and(&c->stream_used, ~(1ULL << (*index & 63)));
		index_by_stream.delete(&key);
	}
	return 0;
}

static __always_inline void set_current(fs_u64 id, fs_u64 handle, int is_push)
{
	struct ctx_stack fresh = {}, *stack = ctxs_by_thread.lookup_or_try_init(&id, &fresh);

	if (!stack)
		return;
	if (is_push || !stack->depth)
		stack->depth++;
	stack->handle[(stack->depth - 1) & (FS_MAX_CTX_STACK - 1)] = handle;
}

static __always_inline void forget(u32 tgid, fs_u64 handle, u32 ordinal, int is_all, fs_u64 now)
{
	struct proc *p = proc_by_tgid.lookup(&tgid);
	struct fs_ctx *c;

	if (!p)
		return;
	FS_LOOP
	for (int i = 0; i < FS_MAX_PROC_CTXS; i++) {
		fs_u64 have = p->slot[i];

		if (!have)
			continue;
		c = ctx_at(have - 1);
		if (!c || c->tgid != tgid)
			continue;
		if (is_all || (handle ? c->handle == handle : c->ordinal == ordinal)) {
			p->slot[i] = 0;
			drop_ctx(have - 1, c, now);
		}
	}
	/* find_slot() relies on the first place being the one in use when there is only one */
	if (!p->slot[0] && !is_all) {
		FS_LOOP
		for (int i = 1; i < FS_MAX_PROC_CTXS; i++) {
			if (!p->slot[0] && p->slot[i]) {
				p->slot[0] = p->slot[i];
				p->slot[i] = 0;
			}
		}
	}
}

static __always_inline void learn_uuid(u32 tgid, struct call *call)
{
	struct fs_dev_key key = {.tgid = tgid, .ordinal = call->arg2};
	struct fs_uuid uuid;
	u32 *gpu;

	if (bpf_probe_read_user(&uuid, sizeof(uuid), (void *)call->arg)) {
		count(FS_COUNT_BAD_READ);
		return;
	}
	gpu = gpu_by_uuid.lookup(&uuid);
	if (gpu && gpu_by_dev.update(&key, gpu))
		count(FS_COUNT_PROC_FULL);
}

static __always_inline void learn_ctx(fs_u64 id, struct call *call, int is_new)
{
	fs_u64 handle = 0;

	if (bpf_probe_read_user(&handle, sizeof(handle), (void *)call->arg)) {
		count(FS_COUNT_BAD_READ);
		return;
	}
	if (is_new && handle)
		add_ctx(id >> 32, handle, call->arg2, 0);
	if (is_new != 2 && handle)
		set_current(id, handle, is_new);
}

static __always_inline void synced(struct call *call, fs_u64 now)
{
	u32 slot = call->mark.slot;
	struct fs_ctx *c = ctx_at(slot);
	fs_u64 covered;

	if (!c || c->generation != call->mark.generation)
		return;
	if (call->kind == CALL_CTX_SYNC)
		covered = ~0ULL;
	else if (call->mark.index >= FS_MAX_STREAMS - 1)
		covered = 0; /* never used, or shared by several streams: no single one proves the others */
	else
		covered = 1ULL << (call->mark.index & (FS_MAX_STREAMS - 1));
	if (call->kind == CALL_STREAM_SYNC && call->arg == FS_STREAM_LEGACY)
		covered |= c->blocking;
	complete(slot, c, covered, call->mark.seq, now, call->arg2);
}

/* What a completed stream had waited for is complete too (one step: a fork and join of streams). */
static __always_inline void synced_deps(struct call *call, fs_u64 now)
{
	struct mark key = call->mark;
	struct deps *deps;

	key.seq = 0;
	deps = deps_by_stream.lookup(&key);
	if (!deps)
		return;
	FS_LOOP
	for (int i = 0; i < FS_MAX_DEPS; i++) {
		struct dep *dep = &deps->dep[i];
		u32 slot = dep->on.slot;
		struct fs_ctx *c = ctx_at(slot);

		if (!dep->on.seq || dep->at > call->mark.seq)
			continue;
		if (!c || c->generation != dep->on.generation || dep->on.index >= FS_MAX_STREAMS - 1)
			continue;
		complete(slot, c, 1ULL << (dep->on.index & (FS_MAX_STREAMS - 1)), dep->on.seq, now, now);
		dep->on.seq = 0;
	}
}

static __always_inline struct call *returned(struct pt_regs *ctx, fs_u64 *id)
{
	struct call *call;

	*id = bpf_get_current_pid_tgid();
	call = call_by_thread.lookup(id);
	if (!call || !call->kind)
		return 0;
	if ((u32)PT_REGS_RC(ctx) != CUDA_SUCCESS) {
		call->kind = 0; /* an error, or NOT_READY: nothing was proven */
		return 0;
	}
	return call;
}

int on_sync_return(struct pt_regs *ctx)
{
	fs_u64 id, now = bpf_ktime_get_ns();
	struct call *call = returned(ctx, &id);

	if (!call)
		return 0;
	synced(call, now);
	if (call->kind != CALL_CTX_SYNC)
		synced_deps(call, now);
	call->kind = 0;
	return 0;
}

int on_return(struct pt_regs *ctx)
{
	fs_u64 id, handle = 0;
	struct call *call = returned(ctx, &id);
	struct ctx_stack *stack;
	struct fs_ctx *c;
	u32 slot;

	if (!call)
		return 0;
	switch (call->kind) {
	case CALL_CTX_NEW:
		learn_ctx(id, call, 1);
		break;
	case CALL_CTX_GET:
		learn_ctx(id, call, 0);
		break;
	case CALL_CTX_SET:
		set_current(id, call->arg, 0);
		break;
	case CALL_CTX_PUSH:
		set_current(id, call->arg, 1);
		break;
	case CALL_CTX_POP:
		stack = ctxs_by_thread.lookup(&id);
		if (stack && stack->depth)
			stack->depth--;
		break;
	case CALL_DEV_UUID:
		learn_uuid(id >> 32, call);
		break;
	case CALL_STREAM_NEW:
		slot = find_slot();
		c = ctx_at(slot);
		if (c && !bpf_probe_read_user(&handle, sizeof(handle), (void *)call->arg))
			add_index(slot, c, handle, !(call->arg2 & STREAM_NON_BLOCKING));
		break;
	}
	call->kind = 0;
	return 0;
}

int on_drop_return(struct pt_regs *ctx)
{
	fs_u64 id;
	struct call *call = returned(ctx, &id);

	if (!call)
		return 0;
	forget(id >> 32, call->kind == CALL_CTX_DROP ? call->arg : 0, call->arg2, 0, bpf_ktime_get_ns());
	call->kind = 0;
	return 0;
}

/* cuDevicePrimaryCtxRetain names a context without making it current. */
int on_retain_return(struct pt_regs *ctx)
{
	fs_u64 id;
	struct call *call = returned(ctx, &id);

	if (!call)
		return 0;
	if (call->kind == CALL_CTX_NEW)
		learn_ctx(id, call, 2);
	call->kind = 0;
	return 0;
}

/* ---- life and death ---- */

static __always_inline void process_gone(void)
{
	fs_u64 id = bpf_get_current_pid_tgid(), now;
	u32 tgid = id >> 32;

	if ((u32)id != tgid || !proc_by_tgid.lookup(&tgid))
		return;
	now = bpf_ktime_get_ns();
	forget(tgid, 0, 0, 1, now);
	proc_by_tgid.delete(&tgid);
	emit(FS_EDGE_PROC_EXIT, FS_NO_SLOT, 0, 0, now, 0, BPF_RB_FORCE_WAKEUP);
}

/*
 * The leader's exit stands for the process: a killed process loses all threads at once. One whose leader
 * leaves early goes on as an unseen context at its next call.
 */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	process_gone();
	return 0;
}

int on_exec(struct bpf_raw_tracepoint_args *ctx)
{
	process_gone();
	return 0;
}

/* ---- drains: run by user space (BPF_PROG_TEST_RUN) for a held context ---- */

int on_drain_end(struct bpf_raw_tracepoint_args *ctx)
{
	u32 slot = ctx->args[0], engine = ctx->args[3] ? FS_COPY : FS_COMPUTE;
	struct fs_ctx *c = ctx_at(slot);

	if (!c || c->generation != (u32)ctx->args[1] || !(c->flags & FS_CTX_LIVE))
		return 1;
	c->waited_ns = 0;
	clear_streams(slot, c, engine, ~0ULL, bpf_ktime_get_ns(), ctx->args[2]);
	return 0;
}
