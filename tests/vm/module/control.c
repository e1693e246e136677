// SPDX-License-Identifier: GPL-2.0-only
/* The call that asks things of an object, and its questions; those about processes are in lists.c. */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "escapes.h"

#define MAX_PARAMS 65536
#define GET_ID_INFO_V2 0x205

struct gpu_info {
	u32 gpu_id, flags, instance, subdevice_instance, sli_status, board_id, gpu_instance;
	s32 numa_id;
};
static_assert(sizeof(struct gpu_info) == 32);

static u32 get_id_info(struct gpu_info *info)
{
	u32 minor;

	if (!id_info)
		return NV_ERR_NOT_SUPPORTED;
	for (minor = 0; minor < gpus; minor++) {
		if (info->gpu_id != gpu_id_of(minor))
			continue;
		*info = (struct gpu_info){.gpu_id = gpu_id_of(minor),
					  .instance = instance_of(minor),
					  .board_id = gpu_id_of(minor),
					  .gpu_instance = minor,
					  .numa_id = -1};
		return NV_OK;
	}
	return NV_ERR_INVALID_ARGUMENT;
}

static u32 control(struct object *object, u32 cmd, void *params, u32 size)
{
	switch (cmd) {
	case GET_ID_INFO_V2:
		return object->kind == KIND_CLIENT && size == sizeof(struct gpu_info)
			       ? get_id_info(params)
			       : NV_ERR_INVALID_PARAM_STRUCT;
	case 0xa06c0101: /* schedule */
		return object->kind == KIND_GROUP && size == 3 ? NV_OK : NV_ERR_INVALID_PARAM_STRUCT;
	case 0xa06c0103: /* set, get time slice, preempt */
	case 0xa06c0104:
	case 0xa06c0105:
		return object->kind == KIND_GROUP && size == 8 ? NV_OK : NV_ERR_INVALID_PARAM_STRUCT;
	case 0xa06f0103:
		return object->kind == KIND_CHANNEL && size == 3 ? NV_OK : NV_ERR_INVALID_PARAM_STRUCT;
	}
	return list_control(object, cmd, params, size);
}

int escape_control(struct nv_file *file, void *arg, u32 size, u32 *status)
{
	struct nvos54 *call = arg;
	void __user *at = (void __user *)call->params;
	struct client *client;
	struct object *object;
	void *params = NULL;

	if (size != sizeof(*call) || !is_ctl(file))
		return -EINVAL;
	client = client_of(call->client, file);
	object = client ? object_of(client, call->object) : NULL;
	*status = !client ? NV_ERR_INVALID_CLIENT : !object ? NV_ERR_OBJECT_NOT_FOUND : NV_OK;
	if (!*status && call->params_size > MAX_PARAMS)
		*status = NV_ERR_INVALID_PARAM_STRUCT;
	if (!*status && call->params_size) {
		params = kvmalloc(call->params_size, GFP_KERNEL);
		if (!params)
			*status = NV_ERR_NO_MEMORY;
		else if (copy_from_user(params, at, call->params_size))
			*status = NV_ERR_INVALID_ADDRESS;
	}
	if (!*status) {
		*status = control(object, call->cmd, params, call->params_size);
		if (!*status && params && copy_to_user(at, params, call->params_size))
			*status = NV_ERR_INVALID_ADDRESS;
	}
	kvfree(params);
	call->status = *status;
	return 0;
}
