/* SPDX-License-Identifier: GPL-2.0-only */
/* The calls' layouts, and what the files that answer them share: alloc.c, control.c, escapes.c. */
#ifndef ESCAPES_H
#define ESCAPES_H

#include "emulated.h"

struct nvos00 {
	u32 root, parent, old, status;
};
static_assert(sizeof(struct nvos00) == 16);

struct nvos21 {
	u32 root, parent, new, class;
	u64 params;
	u32 params_size, status;
};
static_assert(sizeof(struct nvos21) == 32);

struct nvos64 {
	u32 root, parent, new, class;
	u64 params, rights;
	u32 params_size, flags, status, pad;
};
static_assert(sizeof(struct nvos64) == 48);

struct nvos64_525 {
	u32 root, parent, new, class;
	u64 params, rights;
	u32 flags, status;
};
static_assert(sizeof(struct nvos64_525) == 40);

struct nvos54 {
	u32 client, object, cmd, flags;
	u64 params;
	u32 params_size, status;
};
static_assert(sizeof(struct nvos54) == 32);

struct nvos55 {
	u32 client, parent, object, source_client, source, flags, status;
};
static_assert(sizeof(struct nvos55) == 28);

struct nvos32 {
	u32 root, parent, function, va_space, pad, status;
	u64 total, free;
	u32 owner, memory, type, flags, attr, pad2[7];
	u64 size, alignment, offset, limit;
	u8 rest[64];
};
static_assert(sizeof(struct nvos32) == 184);
static_assert(offsetof(struct nvos32, size) == 88 && offsetof(struct nvos32, limit) == 112);

struct nvos02 {
	u32 root, parent, new, class, flags, pad;
	u64 memory, limit;
	u32 status, pad2;
	s32 fd, pad3;
};
static_assert(sizeof(struct nvos02) == 56);

static inline bool is_ctl(const struct nv_file *file)
{
	return file->minor == NV_CTL_MINOR;
}

/* Three names of one GPU besides its minor: the driver's id, and its instance, which a device is allocated by. */
static inline u32 gpu_id_of(u32 minor)
{
	return (minor + 1) << 8;
}

/* Both ways: the instance of a minor is the minor of that instance. */
static inline u32 instance_of(u32 minor)
{
	return reversed ? gpus - 1 - minor : minor;
}

/* All under books_lock, with the argument in kernel memory; errno, or 0 and the status. */
int escape_alloc(struct nv_file *file, void *arg, u32 size, u32 *status);
int escape_free(struct nv_file *file, void *arg, u32 size, u32 *status);
int escape_heap(struct nv_file *file, void *arg, u32 size, u32 *status);
int escape_alloc_memory(struct nv_file *file, void *arg, u32 size, u32 *status);
int escape_dup(struct nv_file *file, void *arg, u32 size, u32 *status);
int escape_control(struct nv_file *file, void *arg, u32 size, u32 *status);

#endif
