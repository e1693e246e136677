/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Submits. They run at entry: a launch counts from the moment it is asked for.
 *
 * Suffixes: aN = the stream is argument N, cfg = it is in the launch configuration; _pt = the spelling whose
 * stream 0 is the per-thread default stream.
 */
#ifndef FAIRSCHED_SUBMIT_H
#define FAIRSCHED_SUBMIT_H

#include "contexts.h"

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

static __always_inline fs_u64 plain_stream(fs_u64 stream, int per_thread)
{
	if (stream)
		return stream;
	return per_thread ? FS_STREAM_PER_THREAD : FS_STREAM_LEGACY;
}

static __always_inline void remember(fs_u64 kind, fs_u64 arg, fs_u64 arg2, struct mark *mark)
{
	fs_u64 id = bpf_get_current_pid_tgid();
	struct call call = {.kind = kind, .arg = arg, .arg2 = arg2}, *known = call_by_thread.lookup(&id);

	if (mark)
		call.mark = *mark;
	if (known)
		*known = call;
	else if (admit_thread(id >> 32) && call_by_thread.update(&id, &call))
		count(FS_COUNT_CALL_LOST);
}

/*
 * A process that never asks whether its work is done, but submits in bursts with pauses between them, finds out some
 * other way: a burst after a pause says that the one before is over. One that submits without end says nothing.
 */
static __always_inline void note_pause(u32 slot, struct fs_ctx *c, fs_u64 now)
{
	fs_u64 pause = now - c->last_call_ns;

	if (pause < FS_TIGHT_NS) {
		c->tight++;
	} else if (pause > FS_PAUSE_NS) {
		if (c->tight >= FS_TIGHT_LAUNCHES && c->busy[FS_COMPUTE].streams && !(c->muted & 1) &&
		    admit_edges(c->owner, 1, now))
			emit(FS_EDGE_RESUBMIT, slot, c, FS_COMPUTE, now, c->submitted, BPF_RB_NO_WAKEUP);
		c->tight = 0;
	}
}

/* Which graph it was: a launch of one is as long as what is in it. Of two at once that take one place one is forgotten. */
static __always_inline void note_graph(u32 slot, struct fs_ctx *c, fs_u64 seq, fs_u64 handle)
{
	struct fs_graphs *graphs = graphs_by_slot.lookup((int *)&slot);
	struct fs_graph_launch *place;

	if (!graphs)
		return;
	if (graphs->generation != c->generation) {
		graphs->generation = c->generation;
		graphs->total = 0;
	}
	place = &graphs->latest[__sync_fetch_and_add(&graphs->total, 1) & (FS_KEPT_GRAPHS - 1)];
	place->handle = handle;
	place->seq = seq;
}

static __always_inline void submit_to(u32 slot, struct fs_ctx *c, u32 index, u32 engine, fs_u64 graph)
{
	fs_u64 now = bpf_ktime_get_ns(), seq;
	struct seqs *seqs = seqs_by_slot.lookup((int *)&slot);

	if (!seqs)
		return;
	if (c->flags & FS_CTX_GPU_GUESSED)
		name_gpu(c);
	if (!c->synced)
		note_pause(slot, c, now);
	c->last_call_ns = now;
	seq = __sync_fetch_and_add(&c->submitted, 1) + 1;
	seqs->last[index & (FS_MAX_STREAMS - 1)] = seq;
	if (engine == FS_COMPUTE) {
		seqs->compute[index & (FS_MAX_STREAMS - 1)] = seq;
		if (!seqs->first[index & (FS_MAX_STREAMS - 1)])
			seqs->first[index & (FS_MAX_STREAMS - 1)] = seq;
	}
	if (graph)
		note_graph(slot, c, seq, graph);
	set_stream(slot, c, engine, 1ULL << (index & (FS_MAX_STREAMS - 1)), now);
}

int on_submit_first(struct pt_regs *ctx)
{
	fs_u64 id = bpf_get_current_pid_tgid();
	struct call *call = call_by_thread.lookup(&id);
	u32 slot = find_slot();
	struct fs_ctx *c;
	u32 index;

	stay_on_stack(ctx);
	if (!call || call->kind != CALL_SUBMIT)
		return 0;
	call->kind = 0;
	if (slot == FS_NO_SLOT && !is_refused(id >> 32))
		slot = add_ctx(id >> 32, 0, FS_ORDINAL_UNSEEN, FS_CTX_UNSEEN);
	c = ctx_at(slot);
	if (!c)
		return 0;
	if (c->cgroup_id != bpf_get_current_cgroup_id())
		follow_cgroup(c, bpf_ktime_get_ns());
	index = add_index(slot, c, call->arg, call->arg <= FS_STREAM_PER_THREAD);
	if (index != FS_NO_INDEX)
		submit_to(slot, c, index, call->arg2, call->mark.seq);
	return 0;
}

static __always_inline void submit(struct pt_regs *ctx, fs_u64 stream, u32 engine, fs_u64 graph)
{
	u32 slot = find_slot(), index = FS_NO_INDEX;
	struct fs_ctx *c = ctx_at(slot);
	struct mark mark = {.seq = graph};

	/* A process that has moved takes the long way, too: whose it is now is to be found out. */
	if (c && c->cgroup_id == bpf_get_current_cgroup_id())
		index = find_index(slot, c, stream);
	if (!c || index == FS_NO_INDEX) {
		remember(CALL_SUBMIT, stream, engine, &mark);
		long_ways.call(ctx, LONG_WAY_SUBMIT);
		count(FS_COUNT_CALL_LOST);
		return;
	}
	submit_to(slot, c, index, engine, graph);
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

int on_submit_graph(struct pt_regs *ctx)
{
	submit(ctx, plain_stream(PT_REGS_PARM2(ctx), 0), FS_COMPUTE, PT_REGS_PARM1(ctx));
	return 0;
}

int on_submit_graph_pt(struct pt_regs *ctx)
{
	submit(ctx, plain_stream(PT_REGS_PARM2(ctx), 1), FS_COMPUTE, PT_REGS_PARM1(ctx));
	return 0;
}

/* One function an expansion: bcc 0.18 finds only the first of several at one place. */
#define SUBMIT(name, engine, stream, per_thread)                          \
	int name(struct pt_regs *ctx)                                     \
	{                                                                 \
		submit(ctx, plain_stream(stream, per_thread), engine, 0); \
		return 0;                                                 \
	}

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

#endif
