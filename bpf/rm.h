/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The ioctls of NVIDIA's driver as far as they are decoded: numbers, classes and layouts, with the driver's names.
 *
 * A request is _IOWR('F', number, size); the driver goes by the number and demands the exact size. The call itself
 * succeeds (errno 0) also when the resource manager refused; `status` says so.
 */
#ifndef FAIRSCHED_RM_H
#define FAIRSCHED_RM_H

#include "abi.h"

#define NV_CTL_MINOR 255
#define NV_MODESET_MINOR 254

#define NV_ESC_RM_ALLOC_MEMORY 0x27
#define NV_ESC_RM_ALLOC_OBJECT 0x28
#define NV_ESC_RM_FREE 0x29
#define NV_ESC_RM_CONTROL 0x2a
#define NV_ESC_RM_ALLOC 0x2b
#define NV_ESC_RM_DUP_OBJECT 0x34
#define NV_ESC_RM_VID_HEAP_CONTROL 0x4a
#define NV_ESC_RM_MAP_MEMORY 0x4e
#define NV_ESC_IOCTL_XFER_CMD 211

#define NV01_ROOT 0x0
#define NV01_ROOT_NON_PRIV 0x1
#define NV01_ROOT_CLIENT 0x41
#define NV01_EVENT 0x5
#define NV01_EVENT_OS_EVENT 0x79
#define NV01_MEMORY_LOCAL_PRIVILEGED 0x3f
#define NV01_MEMORY_LOCAL_USER 0x40
#define NV01_DEVICE_0 0x80
#define KEPLER_CHANNEL_GROUP_A 0xa06c
/* Generations differ in the upper byte: 0xc56f is AMPERE_CHANNEL_GPFIFO_A, 0xc6c0 AMPERE_COMPUTE_A. */
#define NV_CLASS_KIND(class) ((class) & 0xff)
#define NV_CLASS_MIN 0x5000
#define NV_CLASS_MAX 0xffff
#define NV_KIND_CHANNEL_GPFIFO 0x6f
#define NV_KIND_COMPUTE 0xc0

#define NVOS32_FUNCTION_ALLOC_SIZE 2
#define NVOS32_FUNCTION_FREE 3
#define NVOS32_ATTR_LOCATION(attr) ((attr) >> 25 & 3)
#define NVOS32_ATTR_LOCATION_VIDMEM 0
#define NVOS32_ALLOC_FLAGS_VIRTUAL 0x80000

struct nv_ioctl_xfer {
	fs_u32 cmd; /* a bare number */
	fs_u32 size;
	fs_u64 ptr;
};
_Static_assert(sizeof(struct nv_ioctl_xfer) == 16, "nv_ioctl_xfer_t");

struct nvos00 { /* FREE */
	fs_u32 hRoot;
	fs_u32 hObjectParent;
	fs_u32 hObjectOld;
	fs_u32 status;
};
_Static_assert(sizeof(struct nvos00) == 16, "NVOS00_PARAMETERS");

struct nvos05 { /* ALLOC_OBJECT */
	fs_u32 hRoot;
	fs_u32 hObjectParent;
	fs_u32 hObjectNew;
	fs_u32 hClass;
	fs_u32 status;
};
_Static_assert(sizeof(struct nvos05) == 20, "NVOS05_PARAMETERS");

struct nvos21 { /* ALLOC, short form; the long forms begin alike */
	fs_u32 hRoot;
	fs_u32 hObjectParent;
	fs_u32 hObjectNew;
	fs_u32 hClass;
	fs_u64 pAllocParms;
	fs_u32 paramsSize;
	fs_u32 status;
};
_Static_assert(sizeof(struct nvos21) == 32, "NVOS21_PARAMETERS");

struct nvos64 {
	fs_u32 hRoot;
	fs_u32 hObjectParent;
	fs_u32 hObjectNew;
	fs_u32 hClass;
	fs_u64 pAllocParms;
	fs_u64 pRightsRequested;
	fs_u32 paramsSize;
	fs_u32 flags; /* in the 40 bytes of driver 525 the status is here, and nothing follows */
	fs_u32 status;
	fs_u32 pad;
};
_Static_assert(sizeof(struct nvos64) == 48, "NVOS64_PARAMETERS");
#define NVOS64_SIZE_525 40

struct nvos54 { /* CONTROL */
	fs_u32 hClient;
	fs_u32 hObject;
	fs_u32 cmd;
	fs_u32 flags;
	fs_u64 params;
	fs_u32 paramsSize;
	fs_u32 status;
};
_Static_assert(sizeof(struct nvos54) == 32, "NVOS54_PARAMETERS");

struct nvos55 { /* DUP_OBJECT */
	fs_u32 hClient;
	fs_u32 hParent;
	fs_u32 hObject;
	fs_u32 hClientSrc;
	fs_u32 hObjectSrc;
	fs_u32 flags;
	fs_u32 status;
};
_Static_assert(sizeof(struct nvos55) == 28, "NVOS55_PARAMETERS");

struct nvos32 { /* VID_HEAP_CONTROL as far as its AllocSize and Free forms are needed; the driver's is 184 long */
	fs_u32 hRoot;
	fs_u32 hObjectParent;
	fs_u32 function;
	fs_u32 hVASpace;
	fs_u32 pad0;
	fs_u32 status;
	fs_u64 total;
	fs_u64 free;
	fs_u32 owner;
	fs_u32 hMemory;
	fs_u32 type;
	fs_u32 flags;
	fs_u32 attr;
	fs_u32 pad1[7];
	fs_u64 size;
};
_Static_assert(__builtin_offsetof(struct nvos32, status) == 20, "NVOS32_PARAMETERS.status");
_Static_assert(__builtin_offsetof(struct nvos32, hMemory) == 44, "NVOS32_PARAMETERS.data.AllocSize.hMemory");
_Static_assert(__builtin_offsetof(struct nvos32, size) == 88, "NVOS32_PARAMETERS.data.AllocSize.size");
#define NVOS32_SIZE 184

struct nvos02 { /* ALLOC_MEMORY: NVOS02_PARAMETERS and a descriptor */
	fs_u32 hRoot;
	fs_u32 hObjectParent;
	fs_u32 hObjectNew;
	fs_u32 hClass;
	fs_u32 flags;
	fs_u32 pad0;
	fs_u64 pMemory;
	fs_u64 limit; /* size - 1 */
	fs_u32 status;
	fs_u32 pad1;
	fs_u32 fd;
	fs_u32 pad2;
};
_Static_assert(sizeof(struct nvos02) == 56, "nv_ioctl_nvos02_parameters_with_fd");

struct nvos33 { /* MAP_MEMORY: NVOS33_PARAMETERS and a descriptor */
	fs_u32 hClient;
	fs_u32 hDevice;
	fs_u32 hMemory;
	fs_u32 pad0;
	fs_u64 offset;
	fs_u64 length;
	fs_u64 pLinearAddress;
	fs_u32 status;
	fs_u32 flags;
	fs_u32 fd;
	fs_u32 pad1;
};
_Static_assert(sizeof(struct nvos33) == 56, "nv_ioctl_nvos33_parameters_with_fd");

/* NV_MEMORY_ALLOCATION_PARAMS.size and NV0080_ALLOC_PARAMETERS.deviceId: where they are in every release. */
#define NV_MEMORY_ALLOCATION_PARAMS_SIZE 64
#define NV0080_ALLOC_PARAMETERS_DEVICE_ID 0

#endif
