// SPDX-License-Identifier: GPL-2.0-only
/*
 * What nvidia-smi asks: which processes, how much memory, how busy. Versions differ in which answers carry the
 * caller's pids; `translate` says which one to be:
 *
 *   none   initial pids everywhere                                  (before 535.113, and the closed driver)
 *   list   the list has the caller's pids, the rest initial ones    (535.113 to 560)
 *   info   the list and the questions about memory                  (565)
 *   all    utilisation samples as well                              (570 on)
 */
#include <linux/ktime.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/string.h>

#include "emulated.h"

#define MAX_PIDS 950
#define MAX_INFOS 200
#define MAX_SAMPLES 72
#define NO_PID (~0u)

struct pid_list {
	u32 id_type;
	u32 id; /* class of an object that the process must have */
	u32 count;
	u32 pids[MAX_PIDS];
};
static_assert(sizeof(struct pid_list) == 3812);

struct pid_info {
	u32 pid;
	u32 index;
	u32 result;
	u32 pad;
	u64 mem_private;
	u64 mem_shared_owned;
	u64 mem_shared_duped;
	u64 mem_protected[3];
	u32 compute_instance;
	u32 gpu_instance;
};
struct pid_infos {
	u32 count;
	u32 pad;
	struct pid_info list[MAX_INFOS];
};
static_assert(sizeof(struct pid_infos) == 14408);

struct sample_head {
	u8 type;
	u8 pad[3];
	u32 size;
	u32 count;
	u32 tracker;
};

static int translation(void)
{
	if (sysfs_streq(translate, "all"))
		return 3;
	if (sysfs_streq(translate, "info"))
		return 2;
	return sysfs_streq(translate, "list");
}

static bool has_object(struct client *client, u32 class, u32 gpu)
{
	struct object *object;
	unsigned long index;

	xa_for_each(&client->objects, index, object)
	{
		if (object->class == class && object->gpu == gpu)
			return true;
	}
	return false;
}

static u32 get_pids(u32 gpu, struct pid_list *list)
{
	bool own = translation() >= 1;
	struct client *client;
	u32 i, nr;

	if (list->id_type)
		return NV_ERR_INVALID_ARGUMENT;
	list->count = 0;
	list_for_each_entry(client, &clients, all)
	{
		if (!has_object(client, list->id, gpu))
			continue;
		/* As in the real one: the global number is looked for among numbers that may be the caller's. */
		nr = pid_nr(client->pid);
		for (i = 0; i < list->count && list->pids[i] != nr; i++)
			;
		if (i < list->count || list->count == MAX_PIDS)
			continue;
		if (own && os_find_ns_pid(client->pid, &nr))
			continue;
		list->pids[list->count++] = nr;
	}
	return NV_OK;
}

/* The number by which the caller means a process: as in the real one every client's is asked for. */
static u32 number_of(struct client *client, bool own)
{
	u32 nr = pid_nr(client->pid);

	return own && os_find_ns_pid(client->pid, &nr) ? 0 : nr;
}

static u32 get_pid_info(u32 gpu, struct pid_infos *infos)
{
	bool own = translation() >= 2;
	struct client *client;
	struct pid_info *info;
	u32 i;

	if (!infos->count || infos->count > MAX_INFOS)
		return NV_ERR_INVALID_ARGUMENT;
	for (i = 0; i < infos->count; i++) {
		info = &infos->list[i];
		if (!info->pid)
			return NV_ERR_INVALID_ARGUMENT;
		info->result = NV_OK;
		info->mem_private = 0;
		list_for_each_entry(client, &clients, all)
		{
			if (number_of(client, own) == info->pid)
				info->mem_private += client->vram[gpu];
		}
	}
	return NV_OK;
}

/* One sample per process with a context: the memory and the graphics engine at its name, the rest at nobody's. */
static u32 get_samples(u32 gpu, u8 *params, u32 record, u32 engines)
{
	bool own = translation() >= 3 && task_active_pid_ns(current) != &init_pid_ns;
	struct sample_head *head = (struct sample_head *)params;
	struct client *client;
	u64 now_us = ktime_get_real_ns() / 1000;
	u8 *at = params + sizeof(*head);
	u32 engine, nr, util;

	if (head->size != MAX_SAMPLES * (8 + engines * record))
		return NV_ERR_INVALID_ARGUMENT;
	head->count = 0;
	list_for_each_entry(client, &clients, all)
	{
		if (!client->contexts[gpu] || head->count == MAX_SAMPLES)
			continue;
		nr = pid_nr(client->pid);
		util = 5000;
		if (own && os_find_ns_pid(client->pid, &nr)) {
			nr = NO_PID;
			util = 0;
		}
		memcpy(at, &now_us, sizeof(now_us));
		for (engine = 0; engine < engines; engine++) {
			u32 rec[3] = {engine < 2 ? util : 0, 0, engine < 2 ? nr : NO_PID};

			memcpy(at + 8 + engine * record, rec, sizeof(rec));
		}
		at += 8 + engines * record;
		head->count++;
	}
	return NV_OK;
}

u32 list_control(struct object *object, u32 cmd, void *params, u32 size)
{
	u32 record = abi >= 570 ? 128 : 116, engines = abi >= 550 ? 6 : 4;

	if (object->kind != KIND_SUBDEVICE)
		return NV_ERR_INVALID_OBJECT_HANDLE;
	switch (cmd) {
	case 0x2080018d:
		return size == sizeof(struct pid_list) ? get_pids(object->gpu, params)
						       : NV_ERR_INVALID_PARAM_STRUCT;
	case 0x2080018e:
		return size == sizeof(struct pid_infos) ? get_pid_info(object->gpu, params)
							: NV_ERR_INVALID_PARAM_STRUCT;
	case 0x20802096:
		if (size != sizeof(struct sample_head) + MAX_SAMPLES * (8 + engines * record))
			return NV_ERR_INVALID_PARAM_STRUCT;
		return get_samples(object->gpu, params, record, engines);
	}
	return NV_ERR_NOT_SUPPORTED;
}
