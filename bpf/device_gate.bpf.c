/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who may open which NVIDIA device: one program on the top-level cgroup, a rule per cgroup in a map.
 *
 * The rule of a task is that of the innermost cgroup around it that has one; so cgroups made below a tenant
 * are under its rule from their first moment. No rule: no opinion. Looked up from the outermost level down, because
 * how deep a task has gone is its own business and must not help it out.
 *
 * Only opening is judged. Making a node is left to whom it is allowed: a container runtime makes all of /dev where it
 * is asked to, and a node that cannot be opened is of no use.
 */
#include "abi.h"

#define FS_NO_PREALLOC 1 /* BPF_F_NO_PREALLOC */
#define FS_MINOR_UVM_TOOLS 1
#define FS_MINORS_GPU 248
#define FS_MINOR_MODESET 254
#define FS_MINOR_CTL 255

/* Written by the daemon; an entry ends with the cgroup or the tenant. */
BPF_F_TABLE("hash", fs_u64, struct fs_gate, gate_by_cgroup, FS_MAX_GATES, FS_NO_PREALLOC);
/* Written by the daemon together with the rule, counted up here, read by status. */
BPF_F_TABLE("hash", fs_u64, fs_u64, denied_by_gate, FS_MAX_GATES, FS_NO_PREALLOC);
/* Written by the daemon from /proc/devices; enum fs_node. A major that is not in it is none of our business. */
BPF_F_TABLE("hash", fs_u32, fs_u32, node_by_major, FS_MAX_MAJORS, FS_NO_PREALLOC);
/* Written by the daemon: minor of a capability device -> minor of the GPU it belongs to. */
BPF_F_TABLE("hash", fs_u32, fs_u32, gpu_by_cap, FS_MAX_CAPS, FS_NO_PREALLOC);
BPF_ARRAY(gate_head, struct fs_gate_head, 1);

#ifdef FS_TASK_CGROUPS
/*
 * Kernels whose device programs may not ask for an ancestor: task->cgroups->dfl_cgrp->ancestor_ids[level]. The helper
 * is called by its number: by its name bcc would take the older bpf_probe_read where /proc/kallsyms shows it no
 * addresses (as to the service), and programs of this type are not given that one.
 */
static long (*read_kernel)(void *to, fs_u32 size, const void *from) = (void *)BPF_FUNC_probe_read_kernel;

static __always_inline fs_u64 outermost(fs_u64 *cgroup)
{
	fs_u64 at = bpf_get_current_task();
	fs_u32 depth = 0;

	*cgroup = 0;
	if (read_kernel(&at, sizeof(at), (void *)(at + FS_TASK_CGROUPS)) ||
	    read_kernel(&at, sizeof(at), (void *)(at + FS_CSET_CGROUP)) ||
	    read_kernel(&depth, sizeof(depth), (void *)(at + FS_CGROUP_LEVEL)))
		return 0;
	*cgroup = at;
	return depth;
}

static __always_inline fs_u64 ancestor_at(fs_u64 cgroup, fs_u64 depth, fs_u64 level)
{
	fs_u64 id = 0;

	if (level > depth)
		return 0;
	read_kernel(&id, sizeof(id), (void *)(cgroup + FS_CGROUP_IDS + level * sizeof(id)));
	return id;
}
#else
static __always_inline fs_u64 outermost(fs_u64 *cgroup)
{
	*cgroup = 1;
	return FS_MAX_GATE_LEVELS;
}

static __always_inline fs_u64 ancestor_at(fs_u64 cgroup, fs_u64 depth, fs_u64 level)
{
	return bpf_get_current_ancestor_cgroup_id(level);
}
#endif

static __always_inline int has_any(struct fs_gate *gate)
{
	return (gate->gpus[0] | gate->gpus[1] | gate->gpus[2] | gate->gpus[3]) != 0;
}

static __always_inline int has_gpu(struct fs_gate *gate, fs_u32 minor)
{
	return minor < FS_MINORS_GPU && (gate->gpus[(minor >> 6) & (FS_GATE_WORDS - 1)] >> (minor & 63)) & 1;
}

static __always_inline int may_open(struct fs_gate *gate, fs_u32 node, fs_u32 minor)
{
	fs_u32 *gpu;

	if (gate->flags & FS_GATE_ALL)
		return 1;
	switch (node) {
	case FS_NODE_GPU:
		if (minor == FS_MINOR_CTL || minor == FS_MINOR_MODESET)
			return has_any(gate);
		return has_gpu(gate, minor);
	case FS_NODE_UVM:
		return minor <= FS_MINOR_UVM_TOOLS && has_any(gate);
	case FS_NODE_CAPS:
		gpu = gpu_by_cap.lookup(&minor);
		return gpu && has_gpu(gate, *gpu);
	}
	return 0;
}

int gate_nvidia(struct bpf_cgroup_dev_ctx *ctx)
{
	fs_u32 type = ctx->access_type & 0xffff, access = ctx->access_type >> 16;
	fs_u32 major = ctx->major, minor = ctx->minor, zero = 0, *node;
	fs_u64 cgroup, depth, level, id, owner = 0, *denied;
	struct fs_gate *gate = 0, *found;
	struct fs_gate_head *head;

	if (type != BPF_DEVCG_DEV_CHAR || !(access & (BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE)))
		return 1;
	node = node_by_major.lookup(&major);
	if (!node)
		return 1;
	head = gate_head.lookup(&zero);
	if (!head)
		return 1;
	depth = outermost(&cgroup);
	if (!cgroup) {
		__sync_fetch_and_add(&head->blind, 1);
		return 1;
	}
	for (level = 1; level <= FS_MAX_GATE_LEVELS; level++) {
		id = ancestor_at(cgroup, depth, level);
		if (!id)
			break;
		found = gate_by_cgroup.lookup(&id);
		if (found) {
			gate = found;
			owner = id;
		}
	}
	if (!gate || may_open(gate, *node, minor))
		return 1;
	__sync_fetch_and_add(&head->denied, 1);
	denied = denied_by_gate.lookup(&owner);
	if (denied)
		__sync_fetch_and_add(denied, 1);
	return 0;
}
