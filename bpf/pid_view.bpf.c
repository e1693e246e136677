/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Process lists of the NVIDIA driver, in the pids of whoever asks.
 *
 * Problem: older and closed drivers answer with pids of the initial namespace. In a container such a pid is somebody
 * else or nobody, so nvidia-smi shows none of its own processes, and pids of strangers.
 *
 * Approach: after the driver has answered a caller in another PID namespace, the pids in its answer are replaced by
 * those of the caller's namespace, and processes it cannot see are taken out. One call carries pids the other way, too
 * (GET_PID_INFO): they are replaced before the driver looks, and put back after. Nothing but pids and the number of
 * pids is ever written, and only through the pointer the caller gave.
 *
 * Newer drivers do this themselves, some for one kind of call only. Whose job a kind is shows in the call itself: a
 * driver that translates asks os_find_ns_pid() for each process. See decide(); nothing is touched before.
 *
 * Which pid is which is written down (nr_by_tgid, tgid_by_nr) when a process makes its first object or asks a
 * question, and forgotten when it ends: tracing programs cannot look up a struct pid. Offsets come from the kernel's
 * BTF, as -D constants.
 *
 * The hooks run in the caller's context, and the driver has just copied to the pages that are written here.
 */
#include "view_calls.h"

#define ESC_RM_CONTROL 0x2a
#define ESC_RM_ALLOC 0x2b
#define ESC_XFER_CMD 211
#define CTRL_GET_PIDS 0x2080018d
#define CTRL_GET_PID_INFO 0x2080018e
#define CTRL_UTIL_SAMPLES 0x20802096
#define IOC_NR(cmd) ((cmd)&0xff)
#define IOC_SIZE(cmd) ((cmd) >> 16 & 0x3fff)

/* The kind of a control, by its number and its size: the same number with another size is another driver's. */
static __always_inline u32 kind_of(struct rm_control *control)
{
	u32 size = control->size;

	if (control->cmd == CTRL_GET_PIDS && size == GET_PIDS_SIZE)
		return FS_VIEW_KIND_LIST;
	if (control->cmd == CTRL_GET_PID_INFO && size == INFO_SIZE)
		return FS_VIEW_KIND_INFO;
	if (control->cmd == CTRL_UTIL_SAMPLES && (size == 55888 || size == 50704 || size == 34000))
		return FS_VIEW_KIND_SAMPLES;
	return FS_VIEW_KINDS;
}

/* long nvidia_unlocked_ioctl(struct file *, unsigned int cmd, unsigned long arg), and its older spelling */
int on_rm_enter(struct pt_regs *ctx)
{
	u32 cmd = PT_REGS_PARM2(ctx), nr = IOC_NR(cmd), size = IOC_SIZE(cmd);
	fs_u64 thread = bpf_get_current_pid_tgid(), address = PT_REGS_PARM3(ctx);
	struct rm_control control = {};
	struct view_call call = {};
	struct fs_pid_key key = {};
	struct rm_xfer xfer = {};
	struct caller c;

	if (nr != ESC_RM_CONTROL && nr != ESC_RM_ALLOC && nr != ESC_XFER_CMD)
		return 0;
	if (!find_caller(&c))
		return 0;
	key.ns = c.ns;
	key.pid = c.tgid;
	if (!nr_by_tgid.lookup(&key))
		keep_book(&c, 1);
	if (nr == ESC_XFER_CMD) {
		if (size != sizeof(xfer))
			return 0;
		if (bpf_probe_read_user(&xfer, sizeof(xfer), (void *)address)) {
			note(FS_VIEW_COUNT_BAD_READ, 1);
			return 0;
		}
		nr = xfer.nr;
		size = xfer.size;
		address = xfer.address;
	}
	if (nr != ESC_RM_CONTROL || size != sizeof(control))
		return 0;
	if (bpf_probe_read_user(&control, sizeof(control), (void *)address)) {
		note(FS_VIEW_COUNT_BAD_READ, 1);
		return 0;
	}
	call.kind = kind_of(&control);
	if (call.kind >= FS_VIEW_KINDS || translator(call.kind) == FS_VIEW_BY_DRIVER)
		return 0;
	call.control = address;
	call.params = control.params;
	call.ns = c.ns;
	call.size = control.size;
	if (view_by_thread.lookup(&thread)) {
		asked_by_thread.delete(&thread);
		note(FS_VIEW_COUNT_RETURN_LOST, 1);
		drop_call(thread);
	}
	call.owner = find_owner().number;
	call.room = take_room(call.owner, FS_TABLE_CALLS);
	if (call.room ==
	    FS_ROOM_NONE) /* its tenant has too many at once: the answer is left as the driver gives it */
		return 0;
	if (view_by_thread.update(&thread, &call)) {
		give_room(call.owner, FS_TABLE_CALLS, call.room);
		note(FS_VIEW_COUNT_CALL_FULL, 1);
		return 0;
	}
	if (call.kind == FS_VIEW_KIND_INFO && translator(call.kind) == FS_VIEW_BY_US)
		enter_info(thread, &call);
	return 0;
}

/* NV_STATUS os_find_ns_pid(void *, NvU32 *): the driver translates. */
int on_ns_pid(struct pt_regs *ctx)
{
	fs_u64 thread = bpf_get_current_pid_tgid();
	struct view_call *call = view_by_thread.lookup(&thread);

	if (call)
		decide(call->kind, FS_VIEW_BY_DRIVER);
	return 0;
}

/* errno is 0 for whatever the driver's core refuses: the answer says so itself. */
static __always_inline int is_answered(struct pt_regs *ctx, struct view_call *call)
{
	u32 status;

	if ((int)PT_REGS_RC(ctx))
		return 0;
	return !user_u32(&status, call->control + __builtin_offsetof(struct rm_control, status)) && !status;
}

/* The call this thread is in, which ends here. */
static __always_inline int end_call(struct view_call *call)
{
	fs_u64 thread = bpf_get_current_pid_tgid();
	struct view_call *found = view_by_thread.lookup(&thread);

	if (!found)
		return 0;
	*call = *found;
	drop_call(thread);
	return 1;
}

int on_list(struct pt_regs *ctx)
{
	struct view_call call;

	if (end_call(&call))
		answer_list(&call);
	return 0;
}

int on_samples(struct pt_regs *ctx)
{
	struct view_call call;

	if (end_call(&call))
		answer_samples(&call);
	return 0;
}

int on_info(struct pt_regs *ctx)
{
	fs_u64 thread = bpf_get_current_pid_tgid();
	struct view_question *q = asked_by_thread.lookup(&thread);
	struct view_call call;

	if (!end_call(&call))
		return 0;
	if (q) {
		take_back(&call, q);
		asked_by_thread.delete(&thread);
	} else if (is_answered(ctx, &call)) {
		watch_info(&call);
	}
	return 0;
}

/* The rest of it is in three programs: together they are more than older verifiers will follow. */
int on_rm_return(struct pt_regs *ctx)
{
	fs_u64 thread = bpf_get_current_pid_tgid();
	struct view_call *call = view_by_thread.lookup(&thread);

	if (!call)
		return 0;
	if (call->kind == FS_VIEW_KIND_INFO || is_answered(ctx, call))
		answer_by_kind.call(ctx, call->kind);
	drop_call(thread);
	return 0;
}

/* sched_process_exit: of each thread, the last of which takes the process along */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
	fs_u64 thread = bpf_get_current_pid_tgid();
	struct caller c;

	if (!find_caller(&c))
		return 0;
	drop_call(thread);
	asked_by_thread.delete(&thread);
	if (!kernel_u32(kernel_u64(c.task + FS_TASK_SIGNAL) + FS_SIGNAL_LIVE))
		keep_book(&c, 0);
	return 0;
}
