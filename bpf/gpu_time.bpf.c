/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * GPU time per (cgroup, process, GPU) from the entry points of libcuda.
 *
 * Every submit opens the busy interval of its context (submit.h), every call that proves completion closes what it
 * covers (complete.h, proofs.h). Here: contexts and devices, the answers of all calls, and the end of processes. Which export
 * gets which program is decided by exports.py.
 */
#include "complete.h"
#include "proofs.h"
#include "task.h"

/* ---- contexts and devices ---- */

int on_init(struct pt_regs *ctx)
{
	fs_u64 now = bpf_ktime_get_ns();
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct proc *p = enter_proc(tgid);

	stay_on_stack(ctx);
	/* Once, however often it calls; its end is paid for as well. */
	if (!p || p->is_told || !admit_edges(p->whose >> 8, 2, now))
		return 0;
	p->is_told = 1;
	emit(FS_EDGE_PROC_NEW, FS_NO_SLOT, 0, 0, now, 0, BPF_RB_FORCE_WAKEUP);
	return 0;
}

#define REMEMBER(name, kind, arg, arg2)       \
	int name(struct pt_regs *ctx)         \
	{                                     \
		stay_on_stack(ctx);           \
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
REMEMBER(on_ctx_drop, CALL_CTX_DROP, PT_REGS_PARM1(ctx), bpf_ktime_get_ns())
REMEMBER(on_dev_reset, CALL_DEV_RESET, PT_REGS_PARM1(ctx), bpf_ktime_get_ns())
REMEMBER(on_stream_new, CALL_STREAM_NEW, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx))
REMEMBER(on_dev_uuid, CALL_DEV_UUID, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx))

int on_stream_drop(struct pt_regs *ctx)
{
	u32 slot = find_slot(), *index;
	struct fs_ctx *c = ctx_at(slot);
	struct stream_key key = {.handle = PT_REGS_PARM1(ctx), .slot = slot};

	stay_on_stack(ctx);
	if (!c)
		return 0;
	key.generation = c->generation;
	index = index_by_stream.lookup(&key);
	/* Its work goes on: the index may be given out again only when nothing of it is outstanding. */
	if (index && !((c->busy[FS_COMPUTE].streams | c->busy[FS_COPY].streams) >> (*index & 63) & 1)) {
		if (*index < FS_MAX_STREAMS - 1) {
			__sync_fetch_and_and(&c->asked, ~(1ULL << (*index & 63)));
			__sync_fetch_and_and(&c->stream_used, ~(1ULL << (*index & 63)));
		}
		index_by_stream.delete(&key);
	}
	return 0;
}

static __always_inline void set_current(fs_u64 id, fs_u64 handle, int is_push)
{
	struct ctx_stack fresh = {}, *stack = ctxs_by_thread.lookup(&id);

	if (!stack && !admit_thread(id >> 32))
		return;
	if (!stack)
		stack = ctxs_by_thread.lookup_or_try_init(&id, &fresh);
	if (!stack) {
		count(FS_COUNT_THREAD_FULL);
		return;
	}
	if (is_push || !stack->depth)
		stack->depth++;
	if (is_push && stack->depth > FS_MAX_CTX_STACK)
		count(FS_COUNT_STACK_DEEP);
	stack->handle[(stack->depth - 1) & (FS_MAX_CTX_STACK - 1)] = handle;
}

/*
 * The process is gone: all its contexts are. Who takes a slot out of its process gives it back, and nobody else: the last
 * two threads may both find that they are the last, and a libcuda of a tenant's own may end a context twice at once.
 */
static __always_inline void forget_all(u32 tgid, fs_u64 now)
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
		if (__sync_val_compare_and_swap(&p->slot[i], have, 0) == have)
			drop_ctx(have - 1, c, now, 0);
	}
}

/* Its entry goes, and the room it had: once, as with slots. Returns whether this call did it. */
static __always_inline int leave_proc(u32 tgid, struct proc *p)
{
	fs_u64 whose = __sync_lock_test_and_set(&p->whose, 0);

	proc_by_tgid.delete(&tgid);
	if (!whose)
		return 0;
	give_room(whose >> 8, FS_TABLE_PROCESSES, whose & 0xff);
	return 1;
}

/* One context of the process is gone: by handle or, where that is 0, the primary one of an ordinal. Found first, then
 * dropped: dropping inside the loop costs the verifier sixteen times as much. */
static __always_inline void forget_one(u32 tgid, fs_u64 handle, u32 ordinal, fs_u64 now, fs_u64 entered)
{
	struct proc *p = proc_by_tgid.lookup(&tgid);
	u32 place = FS_MAX_PROC_CTXS;
	struct fs_ctx *c;
	fs_u64 have;

	if (!p)
		return;
	FS_LOOP
	for (int i = 0; i < FS_MAX_PROC_CTXS; i++) {
		if (!p->slot[i])
			continue;
		c = ctx_at(p->slot[i] - 1);
		if (c && c->tgid == tgid &&
		    (handle ? c->handle == handle : c->ordinal == ordinal && c->flags & FS_CTX_PRIMARY))
			place = i;
	}
	if (place >= FS_MAX_PROC_CTXS)
		return;
	have = __sync_lock_test_and_set(&p->slot[place], 0);
	if (!have)
		return;
	c = ctx_at(have - 1);
	if (c)
		drop_ctx(have - 1, c, now, entered);
	/* find_slot() relies on the first place being the one in use when there is only one */
	FS_LOOP
	for (int i = 1; i < FS_MAX_PROC_CTXS; i++) {
		if (!p->slot[0] && p->slot[i]) {
			p->slot[0] = p->slot[i];
			p->slot[i] = 0;
		}
	}
}

static __always_inline void learn_uuid(u32 tgid, struct call *call)
{
	struct fs_uuid uuid, other = {};
	u32 *gpu, ordinal = call->arg2;
	struct proc *p;

	if (ordinal >= FS_MAX_GPUS)
		return; /* no node has so many */

	if (bpf_probe_read_user(&uuid, sizeof(uuid), (void *)call->arg)) {
		count(FS_COUNT_BAD_READ);
		return;
	}
	gpu = gpu_by_uuid.lookup(&uuid);
	if (!gpu) /* a GPU nobody told us of: not ours, unless nobody told us of any */
		gpu = gpu_by_uuid.lookup(&other);
	p = gpu ? enter_proc(tgid) : 0;
	if (p)
		*place_of_gpu(p, ordinal) = *gpu + 1;
}

static __always_inline void learn_ctx(fs_u64 id, struct call *call, int is_new)
{
	fs_u64 handle = 0;

	if (bpf_probe_read_user(&handle, sizeof(handle), (void *)call->arg)) {
		count(FS_COUNT_BAD_READ);
		return;
	}
	if (is_new && handle)
		add_ctx(id >> 32, handle, call->arg2, is_new == 2 ? FS_CTX_PRIMARY : 0);
	if (is_new != 2 && handle)
		set_current(id, handle, is_new);
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
		call->refused_ns = bpf_ktime_get_ns();
		return 0;
	}
	return call;
}

int on_sync_return(struct pt_regs *ctx)
{
	fs_u64 id, now = bpf_ktime_get_ns(), covered;
	struct call *call = returned(ctx, &id);
	struct mark key = {};
	struct deps *deps = 0;
	struct seqs *seqs;
	struct told told;
	struct fs_ctx *c;
	int proves;
	u32 slot;

	stay_on_stack(ctx);
	if (!call)
		return 0;
	slot = call->mark.slot;
	c = ctx_at(slot);
	seqs = seqs_by_slot.lookup((int *)&slot);
	if (c && seqs && c->generation == call->mark.generation) {
		key = call->mark;
		key.seq = key.waits = 0;
		if (call->kind != CALL_CTX_SYNC)
			deps = deps_by_stream.lookup(&key);
		told = told_by(c);
		proves = covered_by(call, c, seqs, &covered);
		told.news = proves ? prove(call, c, seqs, covered) : 0;
		c->last_call_ns = now;
		told.gone = proves ? complete(slot, c, seqs, covered, call->mark.seq, now, call->arg2) : 0;
		if (deps)
			synced_deps(call, deps, &told, now);
		tell(slot, c, &told, now);
	}
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

	stay_on_stack(ctx);
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
		if (!c)
			break;
		if (bpf_probe_read_user(&handle, sizeof(handle), (void *)call->arg))
			count(FS_COUNT_BAD_READ);
		else
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

	stay_on_stack(ctx);
	if (!call)
		return 0;
	forget_one(id >> 32, call->kind == CALL_CTX_DROP ? call->arg : 0, call->arg, bpf_ktime_get_ns(),
		   call->arg2);
	call->kind = 0;
	return 0;
}

/*
 * cuDevicePrimaryCtxRetain names a context without making it current. A device has one of a process: where it is another
 * than before, that one was released, which nobody tells as only the last of several releases ends it.
 */
int on_retain_return(struct pt_regs *ctx)
{
	fs_u64 id, now = bpf_ktime_get_ns();
	struct call *call = returned(ctx, &id);
	struct handle_key key = {};

	stay_on_stack(ctx);
	if (!call)
		return 0;
	if (call->kind == CALL_CTX_NEW) {
		key.tgid = id >> 32;
		if (!bpf_probe_read_user(&key.handle, sizeof(key.handle), (void *)call->arg) && key.handle &&
		    !ctx_by_handle.lookup(&key))
			forget_one(key.tgid, 0, call->arg2, now, 0);
		learn_ctx(id, call, 2);
	}
	call->kind = 0;
	return 0;
}

/* ---- life and death ---- */

/* At sched_process_exit and sched_process_exec. */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32, is_told;
	struct proc *p = proc_by_tgid.lookup(&tgid);
	fs_u64 now;

	if (!p || !is_image_gone())
		return 0;
	now = bpf_ktime_get_ns();
	forget_all(tgid, now);
	is_told = p->is_told;
	if (leave_proc(tgid, p) && is_told)
		emit(FS_EDGE_PROC_EXIT, FS_NO_SLOT, 0, 0, now, 0, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* Run by user space (BPF_PROG_TEST_RUN) for a context whose process it finds gone. */
int on_ctx_gone(struct bpf_raw_tracepoint_args *ctx)
{
	u32 slot = ctx->args[0], tgid;
	struct fs_ctx *c = ctx_at(slot);
	fs_u64 mine = (fs_u64)slot + 1, others = 0;
	int is_taken = 0;
	struct proc *p;

	if (!c || c->generation != (u32)ctx->args[1] || !(c->flags & FS_CTX_LIVE))
		return 1;
	tgid = c->tgid;
	p = proc_by_tgid.lookup(&tgid);
	if (!p)
		return 1;
	FS_LOOP
	for (int i = 0; i < FS_MAX_PROC_CTXS; i++) {
		if (__sync_val_compare_and_swap(&p->slot[i], mine, 0) == mine)
			is_taken = 1;
		others |= p->slot[i];
	}
	if (!others)
		leave_proc(tgid, p);
	if (!is_taken)
		return 1;
	count(FS_COUNT_EXIT_MISSED);
	drop_ctx(slot, c, bpf_ktime_get_ns(), 0);
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
