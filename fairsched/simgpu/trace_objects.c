// SPDX-License-Identifier: Apache-2.0
/*
 * Objects of the resource manager: what may be made of what, and memory that its user may only read.
 *
 * The lock is held here, so files are opened and closed by system calls: those of libc are ours (trace_calls.c).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "trace_int.h"

#define FIRST_CLIENT 0xc1d00001u
#define FIRST_OWN 0xcaf00001u
#define MOST_BYTES (1ull << 22) /* in one piece */
#define RECORD_BYTES 32
#define ATTR2_READ_ONLY (1u << 22)
#define MAP_ACCESS 3u
#define MAP_READ_ONLY 1u

struct memory_params {
	uint32_t pad0[6];
	uint32_t attr;
	uint32_t attr2;
	uint32_t pad1[8];
	uint64_t bytes;
	uint64_t pad2[7];
};

struct device_params {
	uint32_t device_id;
	uint32_t pad[13];
};

struct buffer_params {
	uint64_t header_out;
	uint64_t records_out;
	uint32_t record_bytes;
	uint32_t record_count;
	uint64_t vardata_out;
	uint32_t vardata_bytes;
	uint32_t threshold;
	uint64_t notify;
	uint32_t vardata_threshold;
	uint32_t subdevice;
	uint32_t flags;
	uint32_t header;
	uint32_t records;
	uint32_t vardata;
};

_Static_assert(sizeof(struct memory_params) == 128, "NV_MEMORY_ALLOCATION_PARAMS");
_Static_assert(offsetof(struct memory_params, bytes) == 64, "NV_MEMORY_ALLOCATION_PARAMS.size");
_Static_assert(sizeof(struct device_params) == 56, "NV0080_ALLOC_PARAMETERS");
_Static_assert(sizeof(struct buffer_params) == 72, "NV_EVENT_BUFFER_ALLOC_PARAMETERS");
_Static_assert(offsetof(struct buffer_params, subdevice) == 52,
	       "NV_EVENT_BUFFER_ALLOC_PARAMETERS.hSubDevice");

/* Here the driver reads or writes what it must not. */
_Noreturn void would_fault(const char *why)
{
	fprintf(stderr, "libsimtrace: the driver would fault in the kernel: %s\n", why);
	abort();
}

struct object *object_find(struct file *f, uint32_t root, uint32_t handle)
{
	for (struct object *o = f->objects; o; o = o->next)
		if (o->root == root && o->handle == handle)
			return o;
	return NULL;
}

/* A client lives in the file that made it. */
uint32_t client_check(struct file *f, uint32_t root)
{
	struct object *client = object_find(f, root, root);

	return client && client->class == CLASS_CLIENT ? RM_OK : RM_BAD_CLIENT;
}

static struct object *add(struct file *f, const struct rm_alloc *call)
{
	struct object *o = calloc(1, sizeof(*o));

	if (!o)
		return NULL;
	o->root = call->root;
	o->handle = call->object;
	o->parent = call->parent;
	o->class = call->class;
	o->memory = -1;
	o->next = f->objects;
	f->objects = o;
	return o;
}

static uint32_t alloc_client(struct file *f, struct rm_alloc *call)
{
	static _Atomic uint32_t last = FIRST_CLIENT;

	if (call->root || call->parent || call->object)
		return RM_BAD_ARGUMENT;
	call->root = call->object = atomic_fetch_add(&last, 1);
	if (!add(f, call))
		return RM_NO_MEMORY;
	return RM_OK;
}

/* The driver numbers its GPUs in another order than NVML: only a UUID says which is which. */
static uint32_t alloc_device(struct file *f, struct rm_alloc *call, const struct device_params *p)
{
	struct object *o;

	if (p->device_id >= gpus_count())
		return RM_BAD_DEVICE;
	o = add(f, call);
	if (!o)
		return RM_NO_MEMORY;
	o->gpu = gpus_count() - 1 - p->device_id;
	return RM_OK;
}

static uint32_t alloc_subdevice(struct file *f, struct rm_alloc *call, const struct object *device,
				const uint32_t *number)
{
	struct object *o = *number ? NULL : add(f, call);

	if (!o)
		return RM_BAD_ARGUMENT;
	o->gpu = device->gpu;
	return RM_OK;
}

static uint32_t alloc_memory(struct file *f, struct rm_alloc *call, const struct memory_params *p)
{
	int fd;
	void *seen;
	struct object *o;

	if (!p->bytes)
		return RM_BAD_ARGUMENT;
	if (p->bytes > MOST_BYTES)
		return RM_NO_MEMORY;
	fd = memfd_create("simtrace", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)p->bytes))
		return RM_NO_MEMORY;
	seen = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	o = seen == MAP_FAILED ? NULL : add(f, call);
	if (!o)
		return RM_NO_MEMORY;
	o->memory = fd;
	o->seen = seen;
	o->bytes = p->bytes;
	o->is_read_only = p->attr2 & ATTR2_READ_ONLY;
	return RM_OK;
}

static bool is_backing(const struct object *o, uint64_t bytes)
{
	return o->class == CLASS_MEMORY && o->is_read_only && o->bytes >= bytes;
}

static uint32_t alloc_buffer(struct file *f, struct rm_alloc *call, const struct buffer_params *p)
{
	struct object *subdevice, *header, *records, *o;

	if (!p->subdevice)
		would_fault("an event buffer without a subdevice");
	if (p->record_bytes < RECORD_BYTES)
		would_fault("records of an event buffer shorter than what is written to it");
	if (p->notify)
		would_fault("an event buffer that notifies what was not registered");
	subdevice = object_find(f, call->root, p->subdevice);
	header = object_find(f, call->root, p->header);
	records = object_find(f, call->root, p->records);
	if (!subdevice || subdevice->class != CLASS_SUBDEVICE || !header || !records)
		return RM_NOT_FOUND;
	if (p->record_bytes != RECORD_BYTES || p->record_count < 2 || p->vardata_bytes || p->vardata ||
	    !is_backing(header, sizeof(struct ring_header)) ||
	    !is_backing(records, (uint64_t)p->record_count * RECORD_BYTES))
		return RM_BAD_ARGUMENT;
	o = add(f, call);
	if (!o)
		return RM_NO_MEMORY;
	o->gpu = subdevice->gpu;
	o->header = header->seen;
	o->records = records->seen;
	o->size = p->record_count;
	return RM_OK;
}

static const struct kind {
	uint32_t class, parent, size;
} kinds[] = {
	{CLASS_DEVICE, CLASS_CLIENT, sizeof(struct device_params)},
	{CLASS_SUBDEVICE, CLASS_DEVICE, sizeof(uint32_t)},
	{CLASS_MEMORY, CLASS_CLIENT, sizeof(struct memory_params)},
	{CLASS_EVENT_BUFFER, CLASS_CLIENT, sizeof(struct buffer_params)},
};

static uint32_t alloc_check(struct file *f, struct rm_alloc *call, const struct object *parent)
{
	static _Atomic uint32_t last = FIRST_OWN;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (kinds[i].class != call->class)
			continue;
		if (!parent)
			return RM_NOT_FOUND;
		if (parent->class != kinds[i].parent)
			return RM_BAD_PARENT;
		if (call->params_size != kinds[i].size || !call->params)
			return RM_BAD_SIZE;
		if (!call->object)
			call->object = atomic_fetch_add(&last, 1);
		return object_find(f, call->root, call->object) ? RM_DUPLICATE : RM_OK;
	}
	return RM_BAD_CLASS;
}

uint32_t object_alloc(struct file *f, struct rm_alloc *call)
{
	const void *params = (const void *)(uintptr_t)call->params;
	struct object *parent;
	uint32_t status;

	if (call->class == CLASS_CLIENT)
		return alloc_client(f, call);
	status = client_check(f, call->root);
	parent = object_find(f, call->root, call->parent);
	if (!status)
		status = alloc_check(f, call, parent);
	if (status)
		return status;
	switch (call->class) {
	case CLASS_DEVICE:
		return alloc_device(f, call, params);
	case CLASS_SUBDEVICE:
		return alloc_subdevice(f, call, parent, params);
	case CLASS_MEMORY:
		return alloc_memory(f, call, params);
	default:
		return alloc_buffer(f, call, params);
	}
}

/* The file `target` shows the memory from now on. `f` made it. */
uint32_t object_map(struct file *f, struct file *target, const struct rm_map *call)
{
	uint32_t status = client_check(f, call->client);
	struct object *memory = object_find(f, call->client, call->memory);
	int flags = O_CLOEXEC;
	char path[64];

	if (status)
		return status;
	if (!memory || memory->class != CLASS_MEMORY || call->device != call->client)
		return RM_NOT_FOUND;
	if (!target || call->offset || !call->length || call->length > memory->bytes ||
	    (memory->is_read_only && (call->flags & MAP_ACCESS) != MAP_READ_ONLY))
		return RM_BAD_ARGUMENT;
	if (target->mapped >= 0)
		return RM_IN_USE;
	flags |= memory->is_read_only ? O_RDONLY : O_RDWR;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory->memory);
	target->mapped = (int)syscall(SYS_openat, AT_FDCWD, path, flags);
	target->mapped_bytes = call->length;
	return target->mapped < 0 ? RM_NO_MEMORY : RM_OK;
}

void objects_free(struct file *f)
{
	while (f->objects) {
		struct object *o = f->objects;

		f->objects = o->next;
		if (o->seen)
			munmap(o->seen, o->bytes);
		if (o->memory >= 0)
			syscall(SYS_close, o->memory);
		free(o);
	}
	if (f->mapped >= 0)
		syscall(SYS_close, f->mapped);
}
