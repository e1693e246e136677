/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What processes hold of NVIDIA's driver, from their ioctls: contexts and memory per (cgroup, process, GPU), calls
 * and their failures.
 *
 * Three hooks find (file, request, argument) and the result; user space chooses one (fairsched/driver/hooks.py). The
 * rest is the same for all: at entry the call is remembered, and for a FREE which object has the handle now; at
 * return, with the driver's status known, the argument is read again and the tree is changed (objects.h).
 *
 * The argument lies in the caller's memory. A caller that rewrites it while the driver works can make its own
 * account wrong, never another's: whose a client is, is asked of the file and the process (may_change()).
 */
#include <asm/unistd.h>

#include "forgotten.h"
#include "nodes.h"
#include "rm_decode.h"
#include "vram_gate.h"

#define ENOTTY 25
#define EFAULT 14

/* ---- entry ---- */

/* Which object a FREE is about, and which of those that will have had the handle. */
static __always_inline void note_freed(struct call *call)
{
	struct fs_object_key key = {};

	if (call->number == NV_ESC_RM_FREE && call->size == sizeof(struct nvos00)) {
		struct nvos00 f;

		if (read_user(&f, sizeof(f), call->arg))
			return;
		key.client = f.hRoot;
		key.handle = f.hObjectOld;
	} else if (call->number == NV_ESC_RM_VID_HEAP_CONTROL && call->size == NVOS32_SIZE) {
		u32 head[12]; /* up to hMemory */

		if (read_user(head, sizeof(head), call->arg) || head[2] != NVOS32_FUNCTION_FREE)
			return;
		key.client = head[0];
		key.handle = head[11];
	} else {
		return;
	}
	if (key.client == key.handle) {
		struct fs_client *c = client_by_handle.lookup(&key.client);

		call->serial = c ? c->serial : 0;
	} else {
		struct fs_object *o = object_by_key.lookup(&key);

		call->serial = o ? o->serial : 0;
	}
	call->client = key.client;
	call->handle = key.handle;
}

/* A thread calls for the first time. What one calls that its tenant has no room for is not seen. */
static __always_inline void enter_thread(fs_u64 id, struct call *call)
{
	call->owner = find_owner().number;
	call->room = take_room(call->owner, FS_TABLE_THREADS);
	if (call->room == FS_ROOM_NONE) {
		note_partial(id >> 32);
		return;
	}
	if (call_by_thread.insert(&id, call)) {
		give_room(call->owner, FS_TABLE_THREADS, call->room);
		count(FS_DRIVER_COUNT_CALL_FULL);
	}
}

static __always_inline void enter_call(fs_u64 file, u32 node, u32 flags, u32 request, fs_u64 arg)
{
	struct call call = {.file = file, .arg = arg, .flags = flags, .node = node}, *found;
	fs_u64 id = bpf_get_current_pid_tgid();

	call.start_ns = bpf_ktime_get_ns();
	call.number = node == FS_NODE_GPU ? request & 0xff : NO_NUMBER;
	call.size = request >> 16 & 0x3fff;
	resolve(&call);
	note_freed(&call);
	found = call_by_thread.lookup(&id);
	if (!found) {
		enter_thread(id, &call);
		return;
	}
	if (found->start_ns)
		count(FS_DRIVER_COUNT_CALL_LOST);
	call.owner = found->owner;
	call.room = found->room;
	*found = call;
}

/* ---- return ---- */

/* The object a FREE was about; 0 = none that is known. */
static __always_inline int freed(struct call *call, struct change *change)
{
	/* A handle that was rewritten meanwhile, or not to be read at entry: whichever has it now. */
	if (change->key.client != call->client || change->key.handle != call->handle)
		call->serial = 0;
	else if (!call->serial)
		return 0;
	return 1;
}

/* Free, or enter after freeing whatever had the handle before: one copy of each, for the verifier's sake. */
static __always_inline void apply(struct call *call, struct change *change, fs_u64 now)
{
	int is_client = change->key.client == change->key.handle, is_known;
	struct fs_client *c = client_by_handle.lookup(&change->key.client);

	if (!may_change(c, call->file)) {
		count(FS_DRIVER_COUNT_FOREIGN);
		return;
	}
	if (change->is_free) {
		is_known = freed(call, change);
	} else {
		call->serial = 0;
		is_known = is_client ? !!c : !!object_by_key.lookup(&change->key);
		if (is_known)
			count(FS_DRIVER_COUNT_REPLACED);
	}
	if (is_client) {
		if (is_known)
			free_client(change->key.client, call->serial);
		if (!change->is_free)
			enter_client(change->key.client, call->file, now);
		return;
	}
	if (is_known)
		free_object(c, change->key, call->serial);
	if (change->is_free)
		return;
	if (is_known)
		await_deleted(change->key);
	change->object.serial = now;
	enter_object(c, change->key, &change->object);
}

static __always_inline struct fs_calls *calls_of_current(void)
{
	struct fs_caller key = {.tgid = bpf_get_current_pid_tgid() >> 32};
	struct fs_calls fresh = {}, *calls;

	key.cgroup_id = bpf_get_current_cgroup_id();
	calls = calls_by_proc.lookup(&key);
	if (calls)
		return calls;
	fresh.owner = find_owner().number;
	fresh.room = take_room(fresh.owner, FS_TABLE_CALLERS);
	if (fresh.room == FS_ROOM_NONE)
		return 0;
	if (calls_by_proc.insert(&key, &fresh)) /* another thread of it was first, or it is full */
		give_room(fresh.owner, FS_TABLE_CALLERS, fresh.room);
	calls = calls_by_proc.lookup(&key);
	if (!calls)
		count(FS_DRIVER_COUNT_CALLER_FULL);
	return calls;
}

/*
 * The driver has no address of ours wrong when we can read it: it did what it was asked, or refused, and could not
 * write the answer back.
 */
static __always_inline void note_blind(struct call *call)
{
	u32 head;

	if (call->number >= NV_ESC_RM_ALLOC_MEMORY && call->number <= NV_ESC_RM_VID_HEAP_CONTROL &&
	    call->number != NV_ESC_RM_CONTROL && !bpf_probe_read_user(&head, sizeof(head), (void *)call->arg))
		count(FS_DRIVER_COUNT_BLIND);
}

static __always_inline void leave_call(long result)
{
	fs_u64 id = bpf_get_current_pid_tgid(), now;
	struct call *found = call_by_thread.lookup(&id), call;
	struct change change = {.object.gpu = FS_GPU_UNKNOWN};
	struct fs_calls *calls;

	if (!found || !found->start_ns)
		return;
	call = *found;
	found->start_ns = 0;
	now = bpf_ktime_get_ns();
	if (call.flags & CALL_PLAIN && result == -ENOTTY)
		result = 0;
	if (result == -EFAULT)
		note_blind(&call);
	if (!result) {
		if (call.flags & CALL_UNRESOLVED)
			resolve(&call);
		if (decode(&call, &change))
			apply(&call, &change, now);
	}
	calls = calls_of_current();
	if (!calls)
		return;
	__sync_fetch_and_add(&calls->ioctls, 1);
	__sync_fetch_and_add(&calls->time_ns, now - call.start_ns);
	if (result < 0 || change.status)
		__sync_fetch_and_add(&calls->failed, 1);
}

static __always_inline void opened(void)
{
	struct fs_calls *calls = calls_of_current();

	if (calls)
		__sync_fetch_and_add(&calls->opens, 1);
}

/* ---- hook: the driver's own file operations ---- */

int on_ioctl(struct pt_regs *ctx)
{
	u32 flags = 0, node = node_of(PT_REGS_PARM1(ctx), &flags);

	if (node)
		enter_call(PT_REGS_PARM1(ctx), node, flags, PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx));
	return 0;
}

int on_ioctl_return(struct pt_regs *ctx)
{
	leave_call(PT_REGS_RC(ctx));
	return 0;
}

int on_open(struct pt_regs *ctx)
{
	opened();
	return 0;
}

int on_close(struct pt_regs *ctx)
{
	free_file(PT_REGS_PARM2(ctx));
	return 0;
}

/* ---- hook: security modules (bcc: lsm__<hook>) ---- */

/* Two things in one, because bcc goes by the name: it sees calls, and it refuses those beyond a VRAM limit. */
int lsm__file_ioctl(struct bpf_raw_tracepoint_args *ctx)
{
	fs_u64 file = ctx->args[0];
	u32 flags = 0, node = is_kernels_own(ctx->args[1]) ? 0 : node_of(file, &flags);

	if (node == FS_NODE_GPU && is_beyond_limit(file, ctx->args[1], ctx->args[2]))
		return -ENOMEM;
	if (node && !is_judged_only())
		enter_call(file, node, flags, ctx->args[1], ctx->args[2]);
	return 0;
}

int lsm__file_open(struct bpf_raw_tracepoint_args *ctx)
{
	u32 flags = 0;

	if (node_of(ctx->args[0], &flags))
		opened();
	return 0;
}

int lsm__file_free_security(struct bpf_raw_tracepoint_args *ctx)
{
	free_file(ctx->args[0]);
	return 0;
}

/* ---- hook: tracepoints of the system calls ---- */

/*
 * Where the kernel may leave out programs on a single system call they are on those that all of them pass
 * (fairsched/driver/probe.py), which look the same.
 */
struct sys_event {
	fs_u64 common;
	fs_u64 number;  /* its lower half */
	fs_u64 args[3]; /* on return: the result */
};

int on_sys_ioctl(struct sys_event *ctx)
{
	fs_u64 file;
	u32 flags = 0, node;

	if ((u32)ctx->number != __NR_ioctl || is_kernels_own(ctx->args[1]))
		return 0;
	file = file_of(ctx->args[0]);
	if (!file)
		return 0;
	node = node_of(file, &flags);
	if (node)
		enter_call(file, node, flags, ctx->args[1], ctx->args[2]);
	return 0;
}

int on_sys_return(struct sys_event *ctx)
{
	if ((u32)ctx->number == __NR_ioctl)
		leave_call(ctx->args[0]);
	return 0;
}

/* Only a descriptor that is the last of its file: a file shared by a fork lives on. */
int on_sys_close(struct sys_event *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	fs_u64 file;

	if ((u32)ctx->number != __NR_close || !maker_by_tgid.lookup(&tgid))
		return 0;
	file = file_of(ctx->args[0]);
	if (file && kernel_word(file + FS_FILE_REFS) == FS_FILE_LAST_REF)
		free_file(file);
	return 0;
}

/* ---- ends of processes; clients that user space finds without owner ---- */

static __always_inline void process_gone(void)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct fs_maker *maker = maker_by_tgid.lookup(&tgid);

	if (maker)
		maker->gone_ns = bpf_ktime_get_ns();
}

/* A process goes on without its first thread. */
int on_task_exit(struct bpf_raw_tracepoint_args *ctx)
{
	thread_gone(bpf_get_current_pid_tgid());
	if (is_last_thread())
		process_gone();
	return 0;
}

int on_task_exec(struct bpf_raw_tracepoint_args *ctx)
{
	thread_gone(bpf_get_current_pid_tgid());
	process_gone();
	return 0;
}

int on_client_gone(struct bpf_raw_tracepoint_args *ctx)
{
	free_client(ctx->args[0], ctx->args[1]);
	return 0;
}

/* struct fs_forgotten_args. So that an entry and its room always go together. */
int on_forgotten(struct bpf_raw_tracepoint_args *ctx)
{
	fs_u64 key = ctx->args[1], more = ctx->args[2], serial = ctx->args[3];

	switch (ctx->args[0]) {
	case FS_ENTRY_OBJECT:
		object_forgotten((struct fs_object_key){.client = key, .handle = more}, serial);
		break;
	case FS_ENTRY_FILE:
		file_forgotten(key, serial);
		break;
	case FS_ENTRY_MAKER:
		maker_forgotten(key);
		break;
	case FS_ENTRY_CALLS:
		calls_forgotten(key, more);
		break;
	case FS_ENTRY_THREAD:
		thread_gone(key);
		break;
	case FS_ENTRY_CGROUP:
		cgroup_forgotten(key);
		break;
	}
	return 0;
}
