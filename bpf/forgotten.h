/* SPDX-License-Identifier: GPL-2.0-only */
/* Entries of the driver's books that end otherwise than by a call to it: a thread's, and what user space forgets. */
#ifndef FAIRSCHED_FORGOTTEN_H
#define FAIRSCHED_FORGOTTEN_H

#include "rm_call.h"

static __always_inline void thread_gone(fs_u64 id)
{
	struct call *call = call_by_thread.lookup(&id);
	u32 owner, room;

	if (!call)
		return;
	owner = call->owner;
	room = call->room;
	if (!call_by_thread.delete(&id))
		give_room(owner, FS_TABLE_THREADS, room);
}

static __always_inline void object_forgotten(struct fs_object_key key, fs_u64 serial)
{
	struct fs_object *o = object_by_key.lookup(&key);

	if (!o || o->serial != serial || is_closed(SWAP(&o->vram_bytes, CLOSED)))
		return;
	delete_object(o, key);
	count(FS_DRIVER_COUNT_OBJECTS_GONE);
}

/* One with a client again is not forgotten. */
static __always_inline void file_forgotten(fs_u64 file, fs_u64 serial)
{
	struct fs_file *f = clients_by_file.lookup(&file);
	fs_u64 clients = 0;

	if (!f || f->serial != serial)
		return;
	FS_LOOP
	for (int i = 0; i < FS_MAX_FILE_CLIENTS; i++)
		clients |= f->client[i];
	if (!clients)
		delete_file(f, file);
}

static __always_inline void maker_forgotten(u32 tgid)
{
	struct fs_maker *maker = maker_by_tgid.lookup(&tgid);
	u32 owner, room;

	if (!maker)
		return;
	owner = maker->owner;
	room = maker->room;
	if (!maker_by_tgid.delete(&tgid))
		give_room(owner, FS_TABLE_CALLERS, room);
}

static __always_inline void calls_forgotten(fs_u64 cgroup_id, u32 tgid)
{
	struct fs_caller key = {.cgroup_id = cgroup_id, .tgid = tgid};
	struct fs_calls *calls = calls_by_proc.lookup(&key);
	u32 owner, room;

	if (!calls)
		return;
	owner = calls->owner;
	room = calls->room;
	if (!calls_by_proc.delete(&key))
		give_room(owner, FS_TABLE_CALLERS, room);
}

static __always_inline void cgroup_forgotten(fs_u64 id)
{
	struct fs_cgroup_vram *sum = vram_by_cgroup.lookup(&id);
	u32 owner, room;

	if (!sum)
		return;
	owner = sum->owner;
	room = sum->room;
	if (!vram_by_cgroup.delete(&id))
		give_room(owner, FS_TABLE_CGROUPS, room);
}

#endif
