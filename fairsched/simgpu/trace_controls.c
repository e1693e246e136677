// SPDX-License-Identifier: Apache-2.0
/* What the objects of the resource manager are asked. */
#include <linux/capability.h>
#include <string.h>

#include "trace_int.h"

enum {
	GPU_ID = 0x2080014a,
	GPU_TIME = 0x20800403,
	BIND = 0x20801238,
	ENABLE = 0x90cd0101,
	UPDATE_GET = 0x90cd0102,
	FLUSH = 0x90cd0104,
};

#define KEEP_NEWEST 2u
#define KNOWN_FLAGS 3u
#define REASON_SPLIT 3 /* not enabled */

struct gpu_id_params {
	uint32_t index;
	uint32_t flags;
	uint32_t length;
	char data[256];
};

struct bind_params {
	uint32_t buffer;
	uint32_t record_bytes;
	uint32_t detail;
	uint32_t filter;
	uint8_t is_of_all;
	uint8_t pad[3];
	uint32_t reason;
};

struct enable_params {
	uint8_t is_enabled;
	uint8_t pad[3];
	uint32_t flags;
};

struct get_params {
	uint32_t get;
	uint32_t vardata_get;
};

static bool is_admin(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {{0}};

	return !syscall(SYS_capget, &head, data) && data[0].effective >> CAP_SYS_ADMIN & 1;
}

static uint32_t tell_id(const struct object *o, struct gpu_id_params *p)
{
	if (p->flags)
		return RM_NOT_SUPPORTED;
	memcpy(p->data, gpu_of(o->gpu)->spec.uuid, sizeof(gpu_of(o->gpu)->spec.uuid));
	p->length = (uint32_t)strlen(p->data) + 1;
	return RM_OK;
}

static uint32_t bind_buffer(struct file *f, const struct object *subdevice, uint32_t root,
			    struct bind_params *p)
{
	struct object *buffer = object_find(f, root, p->buffer);

	p->reason = 0;
	if (!buffer || buffer->class != CLASS_EVENT_BUFFER || buffer->gpu != subdevice->gpu)
		return RM_NOT_FOUND;
	if (gpu_is_split(buffer->gpu)) {
		p->reason = REASON_SPLIT;
		return RM_NOT_SUPPORTED;
	}
	if (buffer->is_bound)
		return RM_OK;
	buffer->is_bound = true;
	buffer->is_of_all = p->is_of_all && is_admin();
	records_begin(buffer);
	return RM_OK;
}

/* What ran before is discarded, yet counted. */
static uint32_t enable(struct object *buffer, const struct enable_params *p)
{
	if (p->flags & ~KNOWN_FLAGS)
		return RM_BAD_ARGUMENT;
	if (buffer->is_bound)
		records_fill(buffer);
	buffer->is_enabled = p->is_enabled;
	buffer->keeps_newest = p->flags & KEEP_NEWEST;
	return RM_OK;
}

static uint32_t update_get(struct object *buffer, const struct get_params *p)
{
	struct ring_header *h = buffer->header;

	if (p->get >= buffer->size || p->vardata_get)
		return RM_BAD_ARGUMENT;
	atomic_store(&h->get, p->get);
	h->count = (atomic_load(&h->put) + buffer->size - p->get) % buffer->size;
	h->dropped = h->vardata_dropped = 0;
	return RM_OK;
}

static uint32_t flush(struct object *buffer)
{
	if (buffer->is_bound)
		records_fill(buffer);
	return RM_OK;
}

static const struct command {
	uint32_t cmd, class, size;
} commands[] = {
	{GPU_ID, CLASS_SUBDEVICE, sizeof(struct gpu_id_params)},
	{GPU_TIME, CLASS_SUBDEVICE, sizeof(uint64_t)},
	{BIND, CLASS_SUBDEVICE, sizeof(struct bind_params)},
	{ENABLE, CLASS_EVENT_BUFFER, sizeof(struct enable_params)},
	{UPDATE_GET, CLASS_EVENT_BUFFER, sizeof(struct get_params)},
	{FLUSH, CLASS_EVENT_BUFFER, 0},
};

static uint32_t control_check(const struct rm_control *call, const struct object *o)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (commands[i].cmd == call->cmd && commands[i].class == o->class)
			return commands[i].size == call->params_size && !call->params == !call->params_size
				       ? RM_OK
				       : RM_BAD_SIZE;
	return RM_NOT_SUPPORTED;
}

uint32_t object_control(struct file *f, struct rm_control *call)
{
	uint32_t status = client_check(f, call->client);
	struct object *o = object_find(f, call->client, call->object);
	void *params = (void *)(uintptr_t)call->params;

	if (!status && !o)
		status = RM_NOT_FOUND;
	if (!status)
		status = control_check(call, o);
	if (status)
		return status;
	if ((call->cmd == ENABLE || call->cmd == FLUSH) && !gpus_catch_up())
		return RM_GPU_IS_LOST;
	switch (call->cmd) {
	case GPU_ID:
		return tell_id(o, params);
	case GPU_TIME:
		*(uint64_t *)params = gpu_time_ns(o->gpu, sim_now_ns());
		return RM_OK;
	case BIND:
		return bind_buffer(f, o, call->client, params);
	case ENABLE:
		return enable(o, params);
	case UPDATE_GET:
		return update_get(o, params);
	default:
		return flush(o);
	}
}
