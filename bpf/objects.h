/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The driver's objects: a tree per client, with sums at every level (docs/decisions/0009).
 *
 * Freeing takes the sums of one object from those above it and forgets that object alone; what was below leads
 * nowhere from then on (its parent's serial is gone) and is in no sum. Closing the sums comes first: an add that
 * comes later sees it and stops, so each byte is taken from above exactly once, in whatever order calls end on
 * different CPUs. Whoever closed an object deletes it.
 *
 * Accepted race: a map element may be given out anew between the look at its serial and the add to it, within
 * nanoseconds, if the object is freed by another thread of the same client at that moment. One that was looked up
 * before and is gone, but not given out yet, is closed.
 */
#ifndef FAIRSCHED_OBJECTS_H
#define FAIRSCHED_OBJECTS_H

#include "driver_maps.h"
#include "rm.h"

/* A closed sum. It stays one, whatever was added since; sums below 0 are not closed ones. */
#define CLOSED (1ULL << 62)
#define MAX_VRAM (1ULL << 48)
#define REPLACE_TRIES 64

/*
 * Whether the calling process may change what a client has. The driver lets nobody at clients that were made through
 * another file, but its answer lies in the caller's memory, where another thread may rewrite it. So we ask as it does;
 * the other files of the process that made the client are taken for its own. A handle of a process that is gone may be
 * somebody else's before we see its file close.
 */
static __always_inline int may_change(struct fs_client *c, fs_u64 file)
{
	struct fs_maker *maker;
	u32 tgid;

	if (!c || c->file == file)
		return 1;
	tgid = c->tgid;
	if (tgid == bpf_get_current_pid_tgid() >> 32)
		return 1;
	maker = maker_by_tgid.lookup(&tgid);
	return maker && maker->gone_ns;
}

/* What is added to the sums of an object; negative when something goes. */
struct sums {
	fs_u64 vram_bytes;
	fs_u64 computes;
	fs_u64 contexts;
};

/*
 * 1 or 0 without a jump: the verifier goes through every path of every level of the tree. The barrier keeps the
 * compiler from seeing a comparison, which it would make a jump of.
 */
static __always_inline fs_u64 is_closed(fs_u64 sum)
{
	sum = (sum - (CLOSED >> 1)) >> 62;
	asm volatile("" : "+r"(sum));
	return (sum - 1) >> 63;
}

static __always_inline fs_u64 is_zero(fs_u64 value)
{
	asm volatile("" : "+r"(value));
	return 1 - ((value | -value) >> 63);
}

/* Add to one sum; what comes too late is not passed on upward. Returns the sum before. */
static __always_inline fs_u64 add_one(fs_u64 *sum, fs_u64 *value)
{
	fs_u64 before = FETCH_ADD(sum, *value);

	*value &= is_closed(before) - 1;
	return before;
}

#include "vram.h"

static __always_inline int add_to_client(struct fs_client *c, fs_u64 serial, u32 gpu, struct sums *add)
{
	struct fs_held *held;
	fs_u64 index = gpu;

	/* Opaque, so that what is compared and what is used are one register: else Linux 6.1 does not see the bound. */
	asm volatile("" : "+r"(index));
	if (!c || c->serial != serial || index >= FS_GPUS_HELD)
		return -1;
	held = &c->held[index];
	add_one(&held->vram_bytes, &add->vram_bytes);
	add_one(&held->contexts, &add->contexts);
	if (add->vram_bytes)
		add_above(c, gpu, add->vram_bytes);
	return 0;
}

/* Where sums are added next: an object, or its client when the handle is the client's. */
struct place {
	struct fs_object_key key;
	fs_u64 serial;
};

/*
 * Add to the object `o` and go on to what it is in. The first compute object below a channel group makes it a context,
 * the last one to go ends that.
 */
static __always_inline void add_to_object(struct fs_object *o, struct place *at, struct sums *add)
{
	fs_u64 before = add_one(&o->computes, &add->computes);

	add->contexts += o->is_group * (is_zero(before) - is_zero(before + add->computes));
	add_one(&o->vram_bytes, &add->vram_bytes);
	add_one(&o->contexts, &add->contexts);
	at->serial = o->parent_serial;
	at->key.handle = o->parent;
}

static __always_inline int is_nothing(const struct sums *add)
{
	return !(add->vram_bytes | add->computes | add->contexts);
}

/* Add to what is `at` a place and all above it, its client `c` and the total. Returns 0 when it arrived there. */
static __always_inline int add_upward(struct fs_client *c, struct place at, u32 gpu, struct sums add)
{
	FS_LOOP
	for (int i = 0; i < FS_MAX_DEPTH; i++) {
		struct fs_object *o;

		if (at.key.handle == at.key.client)
			return add_to_client(c, at.serial, gpu, &add);
		o = object_by_key.lookup(&at.key);
		if (!o || o->serial != at.serial)
			return -1;
		add_to_object(o, &at, &add);
		if (is_nothing(&add))
			return 0;
	}
	count(FS_DRIVER_COUNT_TOO_DEEP);
	return -1;
}

/* An object whose sums are closed: its entry and its room. */
static __always_inline void delete_object(struct fs_object *o, struct fs_object_key key)
{
	u32 owner = o->owner, room = o->room;

	object_by_key.delete(&key);
	give_room(owner, FS_TABLE_OBJECTS, room);
}

/* Take an object out of everything above it. `serial` 0: whichever has the handle now. */
static __always_inline void free_object(struct fs_client *c, struct fs_object_key key, fs_u64 serial)
{
	struct place above = {.key = key};
	struct fs_object *o = object_by_key.lookup(&key);
	struct sums less;
	u32 gpu;

	if (!o || (serial && o->serial != serial))
		return;
	less.vram_bytes = SWAP(&o->vram_bytes, CLOSED);
	if (is_closed(less.vram_bytes))
		return;
	less.vram_bytes = -less.vram_bytes;
	less.computes = -SWAP(&o->computes, CLOSED);
	less.contexts = -SWAP(&o->contexts, CLOSED);
	above.key.handle = o->parent;
	above.serial = o->parent_serial;
	gpu = o->gpu;
	delete_object(o, key);
	count(FS_DRIVER_COUNT_OBJECTS_GONE);
	add_upward(c, above, gpu, less);
}

static __always_inline void free_client(u32 handle, fs_u64 serial)
{
	struct fs_client *c = client_by_handle.lookup(&handle);
	struct fs_file *file;
	u32 owner, room;
	fs_u64 of_file;

	if (!c || (serial && c->serial != serial) || SWAP(&c->is_gone, 1))
		return;
	FS_LOOP
	for (u32 gpu = 0; gpu < FS_GPUS_HELD; gpu++) {
		fs_u64 vram_bytes = SWAP(&c->held[gpu].vram_bytes, CLOSED);

		SWAP(&c->held[gpu].contexts, CLOSED);
		if (gpu < FS_MAX_GPUS)
			c->freed[gpu] = -vram_bytes;
	}
	free_above(c);
	of_file = c->file;
	owner = c->owner;
	room = c->room;
	client_by_handle.delete(&handle);
	give_room(owner, FS_TABLE_CLIENTS, room);
	file = clients_by_file.lookup(&of_file);
	if (!file)
		return;
	FS_LOOP
	for (int i = 0; i < FS_MAX_FILE_CLIENTS; i++)
		SWAP_IF(&file->client[i], handle, 0);
}

static __always_inline void delete_file(struct fs_file *f, fs_u64 file)
{
	u32 owner = f->owner, room = f->room;

	if (!clients_by_file.delete(&file))
		give_room(owner, FS_TABLE_CLIENTS, room);
}

/* The last descriptor of a file is closed: the driver frees the clients made through it. */
static __always_inline void free_file(fs_u64 file)
{
	struct fs_file *f = clients_by_file.lookup(&file);

	if (!f)
		return;
	FS_LOOP
	for (int i = 0; i < FS_MAX_FILE_CLIENTS; i++) {
		u32 handle = f->client[i];

		if (handle)
			free_client(handle, 0);
	}
	delete_file(f, file);
}

/* The process that makes a client; 0: its tenant has its part of the table. */
static __always_inline struct fs_maker *enter_maker(u32 owner)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct fs_maker fresh = {.owner = owner}, *maker = maker_by_tgid.lookup(&tgid);

	if (maker)
		return maker;
	fresh.room = take_room(owner, FS_TABLE_CALLERS);
	if (fresh.room == FS_ROOM_NONE)
		return 0;
	if (maker_by_tgid.insert(&tgid, &fresh)) /* another thread of it was first, or it is full */
		give_room(owner, FS_TABLE_CALLERS, fresh.room);
	maker = maker_by_tgid.lookup(&tgid);
	if (!maker)
		count(FS_DRIVER_COUNT_CALLER_FULL);
	return maker;
}

/* The file a client is made through; the same. */
static __always_inline struct fs_file *enter_file(fs_u64 file, u32 owner, fs_u64 now)
{
	struct fs_file fresh = {.serial = now, .owner = owner}, *f = clients_by_file.lookup(&file);

	if (f)
		return f;
	fresh.room = take_room(owner, FS_TABLE_CLIENTS);
	if (fresh.room == FS_ROOM_NONE)
		return 0;
	if (clients_by_file.insert(&file, &fresh))
		give_room(owner, FS_TABLE_CLIENTS, fresh.room);
	f = clients_by_file.lookup(&file);
	if (!f)
		count(FS_DRIVER_COUNT_CLIENT_FULL);
	return f;
}

static __always_inline void enter_client(u32 handle, fs_u64 file, fs_u64 now)
{
	u32 owner = find_owner().number, room = FS_ROOM_NONE;
	struct fs_maker *maker = enter_maker(owner);
	struct fs_client *c = 0, *zero;
	struct fs_file *f;
	int first = 0, kept = 0;

	zero = zero_client.lookup(&first);
	if (!zero || !maker) /* nothing of this process is in the books */
		return;
	f = enter_file(file, owner, now);
	if (f)
		room = take_room(owner, FS_TABLE_CLIENTS);
	if (room != FS_ROOM_NONE) {
		if (client_by_handle.insert(&handle, zero)) {
			give_room(owner, FS_TABLE_CLIENTS, room);
			count(FS_DRIVER_COUNT_CLIENT_FULL);
		} else {
			c = client_by_handle.lookup(&handle);
		}
	}
	if (!c || !f) {
		maker->is_partial = 1;
		return;
	}
	c->file = file;
	c->cgroup_id = bpf_get_current_cgroup_id();
	c->owner = owner;
	c->room = room;
	note_above(c);
	c->tgid = bpf_get_current_pid_tgid() >> 32;
	c->handle = handle;
	c->file_serial = f->serial;
	c->serial = now;
	/* Unrolled: as a loop it falls through into its own beginning, which kernels before 6.8 take for endless. */
	_Pragma("clang loop unroll(full)") for (int i = 0; i < FS_MAX_FILE_CLIENTS; i++)
	{
		if (!kept && !SWAP_IF(&f->client[i], 0, (fs_u64)handle))
			kept = 1;
	}
	if (!kept) /* it ends with its FREE, or when user space finds its file gone */
		count(FS_DRIVER_COUNT_FILE_FULL);
}

/* What the driver made; `object` has class, parent, vram_bytes and, for a device, gpu. */
static __always_inline void enter_object(struct fs_client *c, struct fs_object_key key,
					 struct fs_object *object)
{
	struct place above = {.key = {.client = key.client, .handle = object->parent}};
	struct sums add = {.vram_bytes = object->vram_bytes, .computes = object->computes};
	struct fs_object *parent = 0;

	if (above.key.handle == above.key.client) {
		object->parent_serial = c ? c->serial : 0;
	} else {
		parent = object_by_key.lookup(&above.key);
		object->parent_serial = parent ? parent->serial : 0;
		object->gpu = parent ? parent->gpu : FS_GPU_UNKNOWN;
		if (NV_CLASS_KIND(object->class) == NV_KIND_CHANNEL_GPFIFO && object->is_group && parent)
			object->is_group = parent->class != KEPLER_CHANNEL_GROUP_A;
	}
	above.serial = object->parent_serial;
	if (!above.serial || !c) {
		count(FS_DRIVER_COUNT_UNSEEN);
		return;
	}
	object->owner = c->owner;
	object->room = take_room(object->owner, FS_TABLE_OBJECTS);
	if (object->room == FS_ROOM_NONE) {
		note_partial(c->tgid);
		return;
	}
	if (object_by_key.insert(&key, object)) {
		give_room(object->owner, FS_TABLE_OBJECTS, object->room);
		count(FS_DRIVER_COUNT_OBJECT_FULL);
		return;
	}
	count(FS_DRIVER_COUNT_OBJECTS_MADE);
	if (is_nothing(&add))
		return;
	if (parent && parent->serial == above.serial) /* it need not be looked up again */
		add_to_object(parent, &above, &add);
	if (!is_nothing(&add) && add_upward(c, above, object->gpu, add))
		count(FS_DRIVER_COUNT_UNSEEN);
}

/*
 * Before a handle is given out anew, whatever had it is gone: freed with something above it (then it is in no sum), or
 * by a call that ends on another CPU just now and will delete it, which must not hit the new one.
 */
static __always_inline void await_deleted(struct fs_object_key key)
{
	FS_LOOP
	for (int i = 0; i < REPLACE_TRIES; i++) {
		if (!object_by_key.lookup(&key))
			return;
	}
	count(FS_DRIVER_COUNT_RACE);
}

#endif
