/* SPDX-License-Identifier: GPL-2.0-only */
/* What the kernel keeps of the current task, where its own types say that it is (btf.py). */
#ifndef FAIRSCHED_TASK_H
#define FAIRSCHED_TASK_H

#include "abi.h"

static __always_inline fs_u64 kernel_word(fs_u64 from)
{
	fs_u64 word = 0;

	bpf_probe_read_kernel(&word, sizeof(word), (void *)from);
	return word;
}

static __always_inline u32 kernel_half(fs_u64 from)
{
	u32 half = 0;

	bpf_probe_read_kernel(&half, sizeof(half), (void *)from);
	return half;
}

#ifdef FS_SIGNAL_LIVE
/* At sched_process_exit: whether the process ends with this thread. Its first one may have left long before. */
static __always_inline int is_last_thread(void)
{
	return !kernel_half(kernel_word(bpf_get_current_task() + FS_TASK_SIGNAL) + FS_SIGNAL_LIVE);
}
#endif

#define TASK_EXITING 4 /* PF_EXITING */

/*
 * At sched_process_exit and sched_process_exec: whether what the process was is over. A new image has nothing of the
 * old one's. Where the kernel says nothing of its types the first thread stands for all, and user space finds what that
 * misses (fairsched/observe/life.py).
 */
static __always_inline int is_image_gone(void)
{
#ifdef FS_TASK_FLAGS
	return !(kernel_half(bpf_get_current_task() + FS_TASK_FLAGS) & TASK_EXITING) || is_last_thread();
#else
	fs_u64 id = bpf_get_current_pid_tgid();

	return (u32)id == id >> 32;
#endif
}

#endif
