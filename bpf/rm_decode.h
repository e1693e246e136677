/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a call to NVIDIA's driver has changed, read from its argument when it has returned (rm.h has the layouts).
 */
#ifndef FAIRSCHED_RM_DECODE_H
#define FAIRSCHED_RM_DECODE_H

#include "rm_call.h"

/* What a call changes, when it succeeded. */
struct change {
	struct fs_object object;
	struct fs_object_key key;
	u32 is_free;
	u32 status;
};

/*
 * Written by user space: which GPU slot an instance of the driver's (NV0080_ALLOC_PARAMETERS.deviceId) is, plus 1.
 * 0 = not known.
 */
BPF_ARRAY(gpu_by_instance, u32, FS_MAX_GPUS);

static __always_inline u32 instance_gpu(fs_u64 params)
{
	u32 instance = 0, *slot;

	/* Without parameters it is the first GPU. */
	if (params && read_user(&instance, sizeof(instance), params + NV0080_ALLOC_PARAMETERS_DEVICE_ID))
		return FS_GPU_UNKNOWN;
	slot = gpu_by_instance.lookup(&instance);
	if (slot && *slot && *slot <= FS_MAX_GPUS)
		return *slot - 1;
	count(FS_DRIVER_COUNT_GPU_UNKNOWN);
	return FS_GPU_UNKNOWN;
}

static __always_inline void set_vram(struct change *change, fs_u64 bytes)
{
	if (bytes < MAX_VRAM)
		change->object.vram_bytes = bytes;
	else
		count(FS_DRIVER_COUNT_BAD_SIZE);
}

/* Returns 0 for what is not remembered: events are many, and nothing is ever below them. */
static __always_inline int decode_class(struct change *change, fs_u64 params)
{
	u32 class = change->object.class;
	fs_u64 bytes = 0;

	if (class == NV01_EVENT || class == NV01_EVENT_OS_EVENT)
		return 0;
	if (class == NV01_DEVICE_0) {
		change->object.gpu = instance_gpu(params);
	} else if (is_vram_class(class)) {
		if (!read_user(&bytes, sizeof(bytes), params + NV_MEMORY_ALLOCATION_PARAMS_SIZE))
			set_vram(change, bytes);
	} else if (class == KEPLER_CHANNEL_GROUP_A) {
		change->object.is_group = 1;
	} else if (class >= NV_CLASS_MIN && class <= NV_CLASS_MAX) {
		change->object.is_group = NV_CLASS_KIND(class) == NV_KIND_CHANNEL_GPFIFO;
		change->object.computes = NV_CLASS_KIND(class) == NV_KIND_COMPUTE;
	}
	return 1;
}

static __always_inline int decode_alloc(struct call *call, struct change *change)
{
	struct nvos64 a = {};
	int bad;

	if (call->size == sizeof(struct nvos64)) {
		bad = read_user(&a, sizeof(struct nvos64), call->arg);
		change->status = a.status;
	} else if (call->size == NVOS64_SIZE_525) {
		bad = read_user(&a, NVOS64_SIZE_525, call->arg);
		change->status = a.flags;
	} else if (call->size == sizeof(struct nvos21)) {
		bad = read_user(&a, sizeof(struct nvos21), call->arg);
		change->status = a.pRightsRequested >> 32;
	} else {
		return 0;
	}
	if (bad || change->status || !a.hObjectNew)
		return 0;
	change->key.client = a.hRoot;
	change->key.handle = a.hObjectNew;
	change->object.parent = a.hObjectParent;
	change->object.class = a.hClass;
	if (a.hClass == NV01_ROOT || a.hClass == NV01_ROOT_NON_PRIV || a.hClass == NV01_ROOT_CLIENT) {
		change->key.client = a.hObjectNew;
		return 1;
	}
	if (a.hRoot == a.hObjectNew) /* no object has the handle of its client */
		return 0;
	return decode_class(change, a.pAllocParms);
}

static __always_inline int decode_alloc_object(struct call *call, struct change *change)
{
	struct nvos05 a;

	if (call->size != sizeof(a) || read_user(&a, sizeof(a), call->arg))
		return 0;
	change->status = a.status;
	change->key.client = a.hRoot;
	change->key.handle = a.hObjectNew;
	change->object.parent = a.hObjectParent;
	change->object.class = a.hClass;
	/* It has no parameters: neither a device nor memory is made this way. */
	if (a.status || !a.hObjectNew || a.hRoot == a.hObjectNew || a.hClass == NV01_DEVICE_0 ||
	    is_vram_class(a.hClass))
		return 0;
	return decode_class(change, 0);
}

static __always_inline int decode_free(struct call *call, struct change *change)
{
	struct nvos00 f;

	if (call->size != sizeof(f) || read_user(&f, sizeof(f), call->arg))
		return 0;
	change->status = f.status;
	change->key.client = f.hRoot;
	change->key.handle = f.hObjectOld;
	change->is_free = 1;
	return !f.status;
}

static __always_inline int decode_heap(struct call *call, struct change *change)
{
	struct nvos32 h;

	if (call->size != NVOS32_SIZE || read_user(&h, sizeof(h), call->arg))
		return 0;
	change->status = h.status;
	change->key.client = h.hRoot;
	change->key.handle = h.hMemory;
	change->object.parent = h.hObjectParent;
	change->object.class = NV01_MEMORY_LOCAL_USER;
	if (h.status)
		return 0;
	change->is_free = h.function == NVOS32_FUNCTION_FREE;
	if (change->is_free)
		return 1;
	if (!h.hMemory || h.hMemory == h.hRoot || !is_heap_vram(&h))
		return 0;
	set_vram(change, h.size);
	return 1;
}

static __always_inline int decode_memory(struct call *call, struct change *change)
{
	struct nvos02 m;

	if (call->size != sizeof(m) || read_user(&m, sizeof(m), call->arg))
		return 0;
	change->status = m.status;
	change->key.client = m.hRoot;
	change->key.handle = m.hObjectNew;
	change->object.parent = m.hObjectParent;
	change->object.class = m.hClass;
	if (m.status || !m.hObjectNew || m.hRoot == m.hObjectNew || !is_vram_class(m.hClass))
		return 0;
	set_vram(change, m.limit + 1);
	return 1;
}

/* The status of a call that changes nothing here. */
static __always_inline u32 other_status(struct call *call)
{
	u32 status = 0, at = 0;

	if (call->number == NV_ESC_RM_CONTROL && call->size == sizeof(struct nvos54))
		at = __builtin_offsetof(struct nvos54, status);
	else if (call->number == NV_ESC_RM_DUP_OBJECT && call->size == sizeof(struct nvos55))
		at = __builtin_offsetof(struct nvos55, status);
	else if (call->number == NV_ESC_RM_MAP_MEMORY && call->size == sizeof(struct nvos33))
		at = __builtin_offsetof(struct nvos33, status);
	if (at)
		read_user(&status, sizeof(status), call->arg + at);
	return status;
}

/* Returns whether there is something to change; the status is in it either way. */
static __always_inline int decode(struct call *call, struct change *change)
{
	switch (call->number) {
	case NV_ESC_RM_ALLOC:
		return decode_alloc(call, change);
	case NV_ESC_RM_FREE:
		return decode_free(call, change);
	case NV_ESC_RM_VID_HEAP_CONTROL:
		return decode_heap(call, change);
	case NV_ESC_RM_ALLOC_MEMORY:
		return decode_memory(call, change);
	case NV_ESC_RM_ALLOC_OBJECT:
		return decode_alloc_object(call, change);
	}
	change->status = other_status(call);
	return 0;
}

#endif
