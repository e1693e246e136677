/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which file a call is made on: found by pointer or by descriptor, and told by the numbers of its device.
 */
#ifndef FAIRSCHED_NODES_H
#define FAIRSCHED_NODES_H

#include "rm_call.h"
#include "task.h"

/* Written by user space: what the minors of a major are (enum fs_node). 0 = nothing of ours. */
BPF_ARRAY(node_by_major, u32, FS_MAX_MAJOR);
#ifdef FS_PLAIN_NODES
BPF_HASH(node_by_inode, struct fs_inode, u32, 1024);
#endif

#ifdef FS_PLAIN_NODES
/* What is read of struct inode, in one read. */
#define FS_LESS(a, b) ((a) < (b) ? (a) : (b))
#define FS_INODE_FIRST FS_LESS(FS_INODE_RDEV, FS_LESS(FS_INODE_INO, FS_INODE_SB))
#define FS_INODE_PART 64
_Static_assert(FS_INODE_RDEV + 4 - FS_INODE_FIRST <= FS_INODE_PART &&
		       FS_INODE_INO + 8 - FS_INODE_FIRST <= FS_INODE_PART &&
		       FS_INODE_SB + 8 - FS_INODE_FIRST <= FS_INODE_PART,
	       "struct inode");
#endif

/* enum fs_node, 0 when it is no node of the driver's; CALL_PLAIN in `flags` when it only stands for one. */
static __always_inline u32 node_of(fs_u64 file, u32 *flags)
{
	fs_u64 inode = kernel_word(file + FS_FILE_INODE);
	u32 rdev, major, *node;

#ifdef FS_PLAIN_NODES
	char part[FS_INODE_PART] __attribute__((aligned(8))) = {};

	bpf_probe_read_kernel(part, sizeof(part), (void *)(inode + FS_INODE_FIRST));
	rdev = *(u32 *)(part + FS_INODE_RDEV - FS_INODE_FIRST);
	if (!rdev) {
		struct fs_inode key = {.inode = *(fs_u64 *)(part + FS_INODE_INO - FS_INODE_FIRST)};

		key.device = kernel_half(*(fs_u64 *)(part + FS_INODE_SB - FS_INODE_FIRST) + FS_SB_DEV);
		*flags |= CALL_PLAIN;
		node = node_by_inode.lookup(&key);
		return node ? *node : 0;
	}
#else
	rdev = kernel_half(inode + FS_INODE_RDEV);
#endif
	major = rdev >> 20;
	if (!major)
		return 0;
	node = node_by_major.lookup(&major);
	return node ? *node : 0;
}

/* Requests that Linux answers by itself on any file (do_vfs_ioctl() of 5.10 and all later): no driver sees them. */
enum kernel_request {
	FIGETBSZ = 2,
	FIONBIO = 0x5421,
	FIONCLEX = 0x5450,
	FIOCLEX = 0x5451,
	FIOASYNC = 0x5452,
	FIOQSIZE = 0x5460,
	FICLONE = 0x40049409,
	FICLONERANGE = 0x4020940d,
	FIFREEZE = 0xc0045877,
	FITHAW = 0xc0045878,
	FIDEDUPERANGE = 0xc0189436,
	FS_IOC_FIEMAP = 0xc020660b,
};

static __always_inline int is_kernels_own(u32 request)
{
	switch (request) {
	case FIGETBSZ:
	case FIONBIO:
	case FIONCLEX:
	case FIOCLEX:
	case FIOASYNC:
	case FIOQSIZE:
	case FICLONE:
	case FICLONERANGE:
	case FIFREEZE:
	case FITHAW:
	case FIDEDUPERANGE:
	case FS_IOC_FIEMAP:
		return 1;
	}
	return 0;
}

/* The beginning of struct fdtable, in one read: this runs in every ioctl of the node. */
struct descriptors {
	u32 max;
	u32 pad;
	fs_u64 files;
};
_Static_assert(FS_FDT_MAX == 0 && FS_FDT_FD == 8, "struct fdtable");

#if FS_TYPED_TASK
/* The kernel knows the types of what is walked over here, so it is loaded without a helper (typed_task.py). */
static __always_inline struct descriptors descriptors_of_current(void)
{
	void *(*typed_task)(void) = (void *)FS_TYPED_TASK;
	struct descriptors table = {};
	fs_u64 at = (fs_u64)typed_task();

	asm volatile("%0 = *(u64 *)(%0 + %1)" : "+r"(at) : "i"(FS_TASK_FILES));
	asm volatile("%0 = *(u64 *)(%0 + %1)" : "+r"(at) : "i"(FS_FILES_FDT));
	asm volatile("%0 = *(u32 *)(%1 + %2)" : "=r"(table.max) : "r"(at), "i"(FS_FDT_MAX));
	asm volatile("%0 = *(u64 *)(%1 + %2)" : "=r"(table.files) : "r"(at), "i"(FS_FDT_FD));
	return table;
}
#else
static __always_inline struct descriptors descriptors_of_current(void)
{
	fs_u64 files = kernel_word(bpf_get_current_task() + FS_TASK_FILES);
	struct descriptors table = {};

	bpf_probe_read_kernel(&table, sizeof(table), (void *)kernel_word(files + FS_FILES_FDT));
	return table;
}
#endif

static __always_inline fs_u64 file_of(u32 descriptor)
{
	struct descriptors table = descriptors_of_current();

	return descriptor < table.max ? kernel_word(table.files + 8ULL * descriptor) : 0;
}

#endif
