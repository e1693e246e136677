// SPDX-License-Identifier: GPL-2.0-only
/* Clients and what is below them: made, counted, freed. */
#include <linux/sched.h>
#include <linux/slab.h>

#include "emulated.h"

#define FIRST_CLIENT 0xc1d00000u
#define FIRST_OBJECT 0xcaf00000u

DEFINE_MUTEX(books_lock);
LIST_HEAD(clients);
u64 held[MAX_GPUS];
static DEFINE_XARRAY(client_by_handle);
static u32 client_count;
static u32 next_client = FIRST_CLIENT;

int kind_of(u32 class)
{
	switch (class) {
	case 0x0:
	case 0x1:
	case 0x41:
		return KIND_CLIENT;
	case 0x80:
		return KIND_DEVICE;
	case 0x2080:
		return KIND_SUBDEVICE;
	case 0xa06c:
		return KIND_GROUP;
	case 0x3e: /* system memory */
	case 0x3f:
	case 0x40:
		return KIND_MEMORY;
	case 0x5:
	case 0x79: /* events */
	case 0x70:
	case 0x50a0: /* virtual memory */
	case 0x71:
	case 0x90f1: /* address space */
	case 0x9067: /* context share */
	case 0x900e:
	case 0xde:
	case 0x90cd:
		return KIND_OTHER;
	}
	if (class > 0xc000 && class <= 0xffff) {
		switch (class & 0xff) {
		case 0x6f:
			return KIND_CHANNEL;
		case 0xc0:
			return KIND_COMPUTE;
		case 0x61: /* doorbell page */
		case 0xb5: /* copy engine */
			return KIND_OTHER;
		}
	}
	return -1;
}

/* May an object of this class lie below that one? */
static bool fits(u32 class, const struct object *parent)
{
	switch (kind_of(class)) {
	case KIND_DEVICE:
		return parent->kind == KIND_CLIENT;
	case KIND_SUBDEVICE:
	case KIND_GROUP:
		return parent->kind == KIND_DEVICE;
	case KIND_CHANNEL:
		return parent->kind == KIND_DEVICE || parent->kind == KIND_GROUP;
	case KIND_COMPUTE:
		return parent->kind == KIND_CHANNEL;
	case KIND_MEMORY:
		return parent->kind == KIND_DEVICE || parent->kind == KIND_SUBDEVICE;
	case KIND_OTHER:
		if (class == 0x5 || class == 0x79 || class == 0xde || class == 0x90cd)
			return true;
		if (class == 0x9067)
			return parent->kind == KIND_GROUP;
		if ((class & 0xff) == 0xb5 && class > 0xc000)
			return parent->kind == KIND_CHANNEL;
		if ((class & 0xff) == 0x61 && class > 0xc000)
			return parent->kind == KIND_SUBDEVICE;
		return parent->kind != KIND_CLIENT;
	}
	return false;
}

/* The group an object's compute work belongs to: the channel group, or a channel that hangs below a device. */
static struct object *group_of(struct object *object)
{
	for (; object; object = object->parent) {
		if (object->kind == KIND_GROUP)
			return object;
		if (object->kind == KIND_CHANNEL && object->parent->kind != KIND_GROUP)
			return object;
	}
	return NULL;
}

struct client *client_of(u32 handle, const struct nv_file *file)
{
	struct client *client = xa_load(&client_by_handle, handle);
	const struct nv_file *ctl = file->ctl ? file->ctl->private_data : NULL;

	if (!client || (client->file != file && client->file != ctl))
		return NULL;
	return client;
}

struct object *object_of(struct client *client, u32 handle)
{
	return xa_load(&client->objects, handle);
}

static struct object *enter(struct client *client, struct object *parent, u32 class, u32 handle)
{
	struct object *object = kzalloc(sizeof(*object), GFP_KERNEL);

	if (!object)
		return NULL;
	object->client = client;
	object->parent = parent;
	object->handle = handle;
	object->class = class;
	object->kind = kind_of(class);
	object->gpu = parent ? parent->gpu : 0;
	INIT_LIST_HEAD(&object->below);
	INIT_LIST_HEAD(&object->children);
	if (xa_err(xa_store(&client->objects, handle, object, GFP_KERNEL))) {
		kfree(object);
		return NULL;
	}
	if (parent)
		list_add(&object->below, &parent->children);
	client->count++;
	return object;
}

static u64 own_cgroup(void)
{
	u64 id;

	rcu_read_lock();
	id = cgroup_id(task_css_set(current)->dfl_cgrp);
	rcu_read_unlock();
	return id;
}

u32 client_new(const struct nv_file *file, u32 *handle)
{
	struct client *client;

	if (client_count >= MAX_CLIENTS)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	if (*handle && xa_load(&client_by_handle, *handle))
		return NV_ERR_INSERT_DUPLICATE_NAME;
	while (!*handle) {
		*handle = next_client++;
		if (xa_load(&client_by_handle, *handle))
			*handle = 0;
	}
	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		return NV_ERR_NO_MEMORY;
	xa_init(&client->objects);
	client->file = (struct nv_file *)file;
	client->next_handle = FIRST_OBJECT;
	client->cgroup = own_cgroup();
	client->root = enter(client, NULL, 0x41, *handle);
	if (!client->root || xa_err(xa_store(&client_by_handle, *handle, client, GFP_KERNEL))) {
		kfree(client->root);
		xa_destroy(&client->objects);
		kfree(client);
		return NV_ERR_NO_MEMORY;
	}
	client->pid = os_get_pid_info();
	list_add_tail(&client->all, &clients);
	client_count++;
	return NV_OK;
}

static u32 check_new(struct client *client, u32 parent, u32 class, u32 *handle, struct object **above)
{
	if (kind_of(class) < 0)
		return NV_ERR_INVALID_CLASS;
	*above = object_of(client, parent);
	if (!*above || !fits(class, *above))
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (client->count >= MAX_OBJECTS)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	if (*handle && object_of(client, *handle))
		return NV_ERR_INSERT_DUPLICATE_NAME;
	while (!*handle) {
		*handle = client->next_handle++;
		if (object_of(client, *handle))
			*handle = 0;
	}
	return NV_OK;
}

u32 object_new(struct client *client, u32 parent, u32 class, u32 gpu, u32 *handle)
{
	struct object *above, *object, *group;
	u32 status = check_new(client, parent, class, handle, &above);

	if (status)
		return status;
	if (kind_of(class) == KIND_DEVICE && gpu >= gpus)
		return NV_ERR_INVALID_DEVICE;
	object = enter(client, above, class, *handle);
	if (!object)
		return NV_ERR_NO_MEMORY;
	if (object->kind == KIND_DEVICE) {
		object->gpu = gpu;
		client->has_device |= 1u << gpu;
	}
	if (object->kind == KIND_COMPUTE) {
		group = group_of(object);
		if (!group->computes++)
			client->contexts[object->gpu]++;
	}
	return NV_OK;
}

u64 vram_free(u32 gpu)
{
	return ((u64)vram_mib << 20) - held[gpu];
}

u32 memory_new(struct client *client, u32 parent, u32 class, u64 bytes, bool is_vram, u32 *handle)
{
	struct object *above, *object;
	struct backing *backing = NULL;
	u32 status = check_new(client, parent, class, handle, &above);

	if (status)
		return status;
	if (!bytes)
		return NV_ERR_INVALID_ARGUMENT;
	if (is_vram) {
		if (bytes > vram_free(above->gpu))
			return NV_ERR_NO_MEMORY;
		backing = kzalloc(sizeof(*backing), GFP_KERNEL);
		if (!backing)
			return NV_ERR_NO_MEMORY;
	}
	object = enter(client, above, class, *handle);
	if (!object) {
		kfree(backing);
		return NV_ERR_NO_MEMORY;
	}
	if (is_vram) {
		*backing = (struct backing){.gpu = above->gpu, .handles = 1, .bytes = bytes};
		object->backing = backing;
		object->charged = bytes;
		held[above->gpu] += bytes;
		client->vram[above->gpu] += bytes;
	}
	return NV_OK;
}

u32 object_dup(struct client *client, u32 parent, u32 source_client, u32 source, u32 *handle)
{
	struct client *from = xa_load(&client_by_handle, source_client);
	struct object *original, *above, *copy;
	u32 status;

	if (!from)
		return NV_ERR_INVALID_CLIENT;
	original = object_of(from, source);
	if (!original)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (original->kind != KIND_MEMORY)
		return NV_ERR_NOT_SUPPORTED;
	status = check_new(client, parent, original->class, handle, &above);
	if (status)
		return status;
	copy = enter(client, above, original->class, *handle);
	if (!copy)
		return NV_ERR_NO_MEMORY;
	copy->backing = original->backing;
	if (copy->backing)
		copy->backing->handles++;
	return NV_OK;
}

static void leave(struct object *object)
{
	struct client *client = object->client;
	struct object *group;
	struct backing *backing = object->backing;

	if (object->kind == KIND_COMPUTE) {
		group = group_of(object);
		if (!--group->computes)
			client->contexts[object->gpu]--;
	}
	client->vram[object->gpu] -= object->charged;
	if (backing && !--backing->handles) {
		held[backing->gpu] -= backing->bytes;
		kfree(backing);
	}
	list_del(&object->below);
	xa_erase(&client->objects, object->handle);
	client->count--;
	kfree(object);
}

/* From the leaves up, without recursion: what is freed has nothing below it. */
static void free_tree(struct object *top)
{
	struct object *object = top, *above;

	for (;;) {
		while (!list_empty(&object->children))
			object = list_first_entry(&object->children, struct object, below);
		above = object->parent;
		if (object == top) {
			leave(object);
			return;
		}
		leave(object);
		object = above;
	}
}

static void client_free(struct client *client)
{
	u32 handle = client->root->handle;

	free_tree(client->root);
	xa_erase(&client_by_handle, handle);
	xa_destroy(&client->objects);
	list_del(&client->all);
	os_put_pid_info(client->pid);
	client_count--;
	kfree(client);
}

u32 object_free(struct client *client, u32 handle)
{
	struct object *object = object_of(client, handle), *other;
	unsigned long index;
	u32 gpu;

	if (!object)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (object == client->root) {
		client_free(client);
		return NV_OK;
	}
	gpu = object->gpu;
	if (object->kind != KIND_DEVICE) {
		free_tree(object);
		return NV_OK;
	}
	free_tree(object);
	client->has_device &= ~(1u << gpu);
	xa_for_each(&client->objects, index, other)
	{
		if (other->kind == KIND_DEVICE)
			client->has_device |= 1u << other->gpu;
	}
	return NV_OK;
}

void file_gone(struct nv_file *file)
{
	struct client *client, *next;

	list_for_each_entry_safe(client, next, &clients, all)
	{
		if (client->file == file)
			client_free(client);
	}
}
