/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A call to NVIDIA's driver while it is under way: what is remembered of it, and how its argument is read.
 */
#ifndef FAIRSCHED_RM_CALL_H
#define FAIRSCHED_RM_CALL_H

#include "objects.h"

#define NO_NUMBER 0xffff /* of a call that is counted and not decoded */

enum call_flag {
	CALL_PLAIN = 1,      /* the node is a plain file, and the kernel knows no such ioctl on it */
	CALL_UNRESOLVED = 2, /* the argument could not be read at entry */
};

struct call {
	fs_u64 start_ns; /* 0: none is under way */
	fs_u64 file;
	fs_u64 arg;
	fs_u64 serial; /* FREE: of the object that had the handle */
	u32 client;
	u32 handle;
	u32 number;
	u32 size;
	u32 flags;
	u32 node;
	u32 owner; /* whose entry of call_by_thread it is */
	u32 room;
};

/* Private: the last call of each thread, until that exits; to enter and delete it anew would cost each call 0.15 us. */
BPF_HASH(call_by_thread, fs_u64, struct call, FS_MAX_CALLERS);

static __always_inline int read_user(void *to, u32 bytes, fs_u64 from)
{
	if (!bpf_probe_read_user(to, bytes, (void *)from))
		return 0;
	count(FS_DRIVER_COUNT_BAD_READ);
	return -1;
}

static __always_inline void resolve(struct call *call)
{
	struct nv_ioctl_xfer xfer;

	if (call->number == NV_ESC_IOCTL_XFER_CMD) {
		if (read_user(&xfer, sizeof(xfer), call->arg)) {
			call->flags |= CALL_UNRESOLVED;
			return;
		}
		call->number = xfer.cmd < 256 && xfer.cmd != NV_ESC_IOCTL_XFER_CMD ? xfer.cmd : NO_NUMBER;
		call->size = xfer.size;
		call->arg = xfer.ptr;
	}
}

static __always_inline int is_vram_class(u32 class)
{
	return class == NV01_MEMORY_LOCAL_USER || class == NV01_MEMORY_LOCAL_PRIVILEGED;
}

static __always_inline int is_heap_vram(struct nvos32 *h)
{
	return h->function == NVOS32_FUNCTION_ALLOC_SIZE && !(h->flags & NVOS32_ALLOC_FLAGS_VIRTUAL) &&
	       NVOS32_ATTR_LOCATION(h->attr) == NVOS32_ATTR_LOCATION_VIDMEM;
}

#endif
