// SPDX-License-Identifier: GPL-2.0-only
/* The calls that make, copy and free objects. */
#include <linux/mm.h>
#include <linux/uaccess.h>

#include "escapes.h"

#define HEAP_ALLOC 2
#define HEAP_FREE 3
#define HEAP_INFO 5
#define HEAP_VIRTUAL 0x80000
#define ATTR_LOCATION(attr) (((attr) >> 25) & 3)

/* What a class's parameters measure; 0: not looked at. */
static u32 params_size_of(u32 class)
{
	switch (kind_of(class)) {
	case KIND_DEVICE:
		return 56;
	case KIND_SUBDEVICE:
		return 4;
	case KIND_GROUP:
		return 20;
	case KIND_CHANNEL:
		return abi >= 570 ? 368 : abi >= 535 ? 360 : 304;
	case KIND_MEMORY:
		return abi >= 545 ? 128 : 120;
	}
	return 0;
}

static u64 round_size(u64 bytes)
{
	return bytes > (1ULL << 62) ? bytes : ALIGN(bytes, PAGE_4K);
}

static u32 alloc_memory_object(struct client *client, u32 parent, u32 class, u8 *params, u32 *handle)
{
	u64 bytes, offset = 0, limit;
	u32 status;

	memcpy(&bytes, params + 64, sizeof(bytes));
	bytes = round_size(bytes);
	status = memory_new(client, parent, class, bytes, class != 0x3e, handle);
	if (status)
		return status;
	limit = bytes - 1;
	memcpy(params + 64, &bytes, sizeof(bytes));
	memcpy(params + 80, &offset, sizeof(offset));
	memcpy(params + 88, &limit, sizeof(limit));
	return NV_OK;
}

static u32 alloc_below(struct nv_file *file, struct nvos64 *call)
{
	void __user *from = (void __user *)call->params;
	u32 size = params_size_of(call->class), gpu = 0, status;
	struct client *client = client_of(call->root, file);
	u8 params[368] = {};

	if (!client)
		return NV_ERR_INVALID_CLIENT;
	if (kind_of(call->class) < 0)
		return NV_ERR_INVALID_CLASS;
	if (from && size) {
		if (call->params_size && call->params_size != size)
			return NV_ERR_INVALID_PARAM_STRUCT;
		if (copy_from_user(params, from, size))
			return NV_ERR_INVALID_ADDRESS;
	}
	if (kind_of(call->class) == KIND_MEMORY) {
		if (!from)
			return NV_ERR_INVALID_ARGUMENT;
		status = alloc_memory_object(client, call->parent, call->class, params, &call->new);
		if (!status && copy_to_user(from, params, size)) {
			object_free(client, call->new);
			return NV_ERR_INVALID_ADDRESS;
		}
		return status;
	}
	if (kind_of(call->class) == KIND_DEVICE) {
		memcpy(&gpu, params, sizeof(gpu));
		if (gpu < gpus)
			gpu = instance_of(gpu);
	}
	return object_new(client, call->parent, call->class, gpu, &call->new);
}

int escape_alloc(struct nv_file *file, void *arg, u32 size, u32 *status)
{
	struct nvos21 *short_form = arg;
	struct nvos64 *long_form = arg;
	struct nvos64_525 *old_form = arg;
	struct nvos64 call = {};

	if (size == sizeof(*short_form)) {
		memcpy(&call, arg, offsetof(struct nvos21, params_size));
		call.params_size = short_form->params_size;
	} else if (size == (abi < 535 ? sizeof(*old_form) : sizeof(*long_form))) {
		memcpy(&call, arg, size);
		if (abi < 535)
			call.params_size = 0;
	} else {
		return -EINVAL;
	}
	/* Only events may be made through a GPU's own file. */
	if (!is_ctl(file) && call.class != 0x5 && call.class != 0x79)
		return -EINVAL;
	if (kind_of(call.class) == KIND_CLIENT)
		*status = client_new(file, &call.new);
	else
		*status = alloc_below(file, &call);
	short_form->new = call.new;
	if (size == sizeof(*short_form))
		short_form->status = *status;
	else if (size == sizeof(*old_form))
		old_form->status = *status;
	else
		long_form->status = *status;
	return 0;
}

int escape_free(struct nv_file *file, void *arg, u32 size, u32 *status)
{
	struct nvos00 *call = arg;
	struct client *client;

	if (size != sizeof(*call) || !is_ctl(file))
		return -EINVAL;
	client = client_of(call->root, file);
	*status = client ? object_free(client, call->old) : NV_ERR_INVALID_CLIENT;
	call->status = *status;
	return 0;
}

static u32 heap(struct client *client, struct nvos32 *call)
{
	struct object *object = object_of(client, call->parent);
	u64 bytes = round_size(call->size);
	bool is_virtual = call->flags & HEAP_VIRTUAL;
	bool is_vram = !is_virtual && !ATTR_LOCATION(call->attr);
	u32 status;

	switch (call->function) {
	case HEAP_ALLOC:
		/* Virtual memory is an address range: an object without bytes. */
		status = memory_new(client, call->parent, is_vram ? 0x40 : 0x3e, bytes, is_vram,
				    &call->memory);
		if (status)
			return status;
		call->size = bytes;
		call->offset = 0;
		call->limit = bytes - 1;
		break;
	case HEAP_FREE:
		object = object_of(client, call->memory);
		if (!object)
			return NV_ERR_OBJECT_NOT_FOUND;
		if (object->kind != KIND_MEMORY)
			return NV_ERR_INVALID_OBJECT_HANDLE;
		return object_free(client, call->memory);
	case HEAP_INFO:
		if (!object)
			return NV_ERR_INVALID_OBJECT_PARENT;
		break;
	default:
		return NV_ERR_INVALID_FUNCTION;
	}
	object = object_of(client, call->parent);
	call->total = (u64)vram_mib << 20;
	call->free = vram_free(object->gpu);
	return NV_OK;
}

int escape_heap(struct nv_file *file, void *arg, u32 size, u32 *status)
{
	struct nvos32 *call = arg;
	struct client *client;

	if (size != sizeof(*call) || !is_ctl(file))
		return -EINVAL;
	client = client_of(call->root, file);
	*status = client ? heap(client, call) : NV_ERR_INVALID_CLIENT;
	call->status = *status;
	return 0;
}

int escape_alloc_memory(struct nv_file *file, void *arg, u32 size, u32 *status)
{
	struct nvos02 *call = arg;
	struct client *client;

	if (size != sizeof(*call) || is_ctl(file))
		return -EINVAL;
	client = client_of(call->root, file);
	if (!client)
		*status = NV_ERR_INVALID_CLIENT;
	else if (kind_of(call->class) != KIND_MEMORY)
		*status = NV_ERR_INVALID_CLASS;
	else
		*status = memory_new(client, call->parent, call->class, call->limit + 1, call->class != 0x3e,
				     &call->new);
	call->status = *status;
	return 0;
}

int escape_dup(struct nv_file *file, void *arg, u32 size, u32 *status)
{
	struct nvos55 *call = arg;
	struct client *client;

	if (size != sizeof(*call) || !is_ctl(file))
		return -EINVAL;
	client = client_of(call->client, file);
	*status = client ? object_dup(client, call->parent, call->source_client, call->source, &call->object)
			 : NV_ERR_INVALID_CLIENT;
	call->status = *status;
	return 0;
}
