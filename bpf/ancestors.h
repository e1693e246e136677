/* SPDX-License-Identifier: GPL-2.0-only */
/* The cgroups around the calling task: ancestor_at(1) is the outermost below the root, 0 = the task is not so deep. */
#ifndef FAIRSCHED_ANCESTORS_H
#define FAIRSCHED_ANCESTORS_H

#include "abi.h"

#ifdef FS_TASK_CGROUPS
/* Kernels whose programs may not ask for it: task->cgroups->dfl_cgrp->ancestor_ids[level]. */
static __always_inline fs_u64 ancestor_at(fs_u64 level)
{
	fs_u64 at = bpf_get_current_task(), id = 0;
	u32 depth = 0;

	bpf_probe_read_kernel(&at, sizeof(at), (void *)(at + FS_TASK_CGROUPS));
	bpf_probe_read_kernel(&at, sizeof(at), (void *)(at + FS_CSET_CGROUP));
	bpf_probe_read_kernel(&depth, sizeof(depth), (void *)(at + FS_CGROUP_LEVEL));
	if (level <= depth)
		bpf_probe_read_kernel(&id, sizeof(id), (void *)(at + FS_CGROUP_IDS + level * sizeof(id)));
	return id;
}
#else
static __always_inline fs_u64 ancestor_at(fs_u64 level)
{
	return bpf_get_current_ancestor_cgroup_id(level);
}
#endif

#endif
