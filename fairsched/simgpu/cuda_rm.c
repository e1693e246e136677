// SPDX-License-Identifier: Apache-2.0
/*
 * The traffic with the kernel driver that programs on sys_enter_ioctl see: the nodes a CUDA program
 * opens and the RM calls it makes, with the real numbers and layouts. The nodes here are plain files,
 * so the kernel answers ENOTTY; the result the driver would give is in the struct beforehand.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "cuda_int.h"

struct rm_alloc { /* 48 bytes; the size is part of the request number */
	uint32_t root;
	uint32_t parent;
	uint32_t object;
	uint32_t class;
	uint64_t params;
	uint64_t rights;
	uint32_t params_size;
	uint32_t flags;
	uint32_t status;
	uint32_t pad;
};

struct rm_free {
	uint32_t root;
	uint32_t parent;
	uint32_t object;
	uint32_t status;
};

struct rm_control {
	uint32_t client;
	uint32_t object;
	uint32_t cmd;
	uint32_t flags;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};

struct rm_memory_params { /* 128 bytes, size at 64 */
	uint32_t owner;
	uint32_t type;
	uint32_t flags;
	uint32_t pad0[13];
	uint64_t bytes;
	uint64_t pad1[7];
};

struct rm_device_params { /* deviceId first, 56 bytes */
	uint32_t device_id;
	uint32_t pad[13];
};

struct rm_group_params {
	uint32_t error;
	uint32_t error_ecc;
	uint32_t vaspace;
	uint32_t engine_type;
	uint32_t is_call;
};

struct rm_channel_params {
	uint8_t pad0[128];
	uint32_t engine_type;
	uint8_t pad1[236];
};

_Static_assert(sizeof(struct rm_alloc) == 48, "NVOS64");
_Static_assert(sizeof(struct rm_free) == 16, "NVOS00");
_Static_assert(sizeof(struct rm_control) == 32, "NVOS54");
_Static_assert(sizeof(struct rm_memory_params) == 128, "NV_MEMORY_ALLOCATION_PARAMS");
_Static_assert(offsetof(struct rm_memory_params, bytes) == 64, "NV_MEMORY_ALLOCATION_PARAMS.size");
_Static_assert(sizeof(struct rm_device_params) == 56, "NV0080_ALLOC_PARAMETERS");
_Static_assert(sizeof(struct rm_group_params) == 20, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS");
_Static_assert(sizeof(struct rm_channel_params) == 368, "NV_CHANNEL_ALLOC_PARAMS");
_Static_assert(offsetof(struct rm_channel_params, engine_type) == 128, "NV_CHANNEL_ALLOC_PARAMS.engineType");

#define RM_FREE _IOWR('F', 0x29, struct rm_free)
#define RM_CONTROL _IOWR('F', 0x2a, struct rm_control)
#define RM_ALLOC _IOWR('F', 0x2b, struct rm_alloc)
#define UVM_INITIALIZE 0x30000001

enum {
	CLASS_CLIENT = 0x41,
	CLASS_DEVICE = 0x80,
	CLASS_SUBDEVICE = 0x2080,
	CLASS_VASPACE = 0x90f1,
	CLASS_MEMORY_LOCAL_USER = 0x40,
	CLASS_GROUP = 0xa06c,
	CLASS_CHANNEL_HOPPER = 0xc86f,
	CLASS_COMPUTE_HOPPER = 0xcbc0,
};

enum {
	RM_OK = 0,
	RM_NO_MEMORY = 0x51
};
enum {
	ENGINE_GRAPHICS = 1
};

/* Objects of a context, as offsets from the handle of its client. */
enum {
	OBJ_DEVICE = 1,
	OBJ_SUBDEVICE,
	OBJ_VASPACE,
	OBJ_GROUP,
	OBJ_CHANNEL,
	OBJ_COMPUTE,
	OBJ_FIRST_FREE = 16
};

#define CONTROL_GROUP_SCHEDULE 0xa06c0101

static int ctl_fd = -1;
static int uvm_fd = -1;
static int gpu_fds[SIM_MAX_GPUS];
static _Atomic uint32_t next_memory = 0x5c000000;

void rm_forget(void)
{
	/* The child keeps the copies it inherited; it opens its own when it initialises. */
	ctl_fd = uvm_fd = -1;
	for (int i = 0; i < SIM_MAX_GPUS; i++)
		gpu_fds[i] = 0;
}

static int open_node(const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/dev/%s", client.dir, name);
	return open(path, O_RDWR | O_CLOEXEC);
}

static void open_nodes(uint32_t gpu)
{
	char name[32];

	if (ctl_fd < 0) {
		ctl_fd = open_node("nvidiactl");
		uvm_fd = open_node("nvidia-uvm");
		ioctl(uvm_fd, UVM_INITIALIZE, NULL);
	}
	if (gpu_fds[gpu] <= 0) {
		snprintf(name, sizeof(name), "nvidia%u", gpu);
		gpu_fds[gpu] = open_node(name);
	}
}

static void rm_alloc(uint32_t root, uint32_t parent, uint32_t object, uint32_t class, void *params,
		     uint32_t size, uint32_t status)
{
	struct rm_alloc a = {
		.root = root,
		.parent = parent,
		.object = object,
		.class = class,
		.params = (uintptr_t)params,
		.params_size = size,
		.status = status,
	};

	ioctl(ctl_fd, RM_ALLOC, &a);
}

static void rm_free(uint32_t root, uint32_t parent, uint32_t object)
{
	struct rm_free f = {.root = root, .parent = parent, .object = object};

	ioctl(ctl_fd, RM_FREE, &f);
}

/* The driver makes the handles of clients, so no two on a node are alike; here the engine's region number is unique. */
static uint32_t client_handle(const struct cu_ctx *c)
{
	_Static_assert(SIM_MAX_REGIONS <= 1 << 8 && SIM_MAX_DEVICES <= 1 << 7, "room in a client handle");
	return 0xc1d00000 + (c->gpu << 16 | c->region_index << 8);
}

void rm_create_context(struct cu_ctx *c)
{
	uint32_t root = client_handle(c);
	struct rm_device_params device = {.device_id = sim_gpu_of(c->gpu)};
	struct rm_group_params group = {.vaspace = root + OBJ_VASPACE, .engine_type = ENGINE_GRAPHICS};
	struct rm_channel_params channel = {.engine_type = ENGINE_GRAPHICS};
	uint32_t subdevice = 0;
	uint8_t schedule[3] = {1, 0, 0};
	struct rm_control enable = {
		.client = root,
		.object = root + OBJ_GROUP,
		.cmd = CONTROL_GROUP_SCHEDULE,
		.params = (uintptr_t)schedule,
		.params_size = sizeof(schedule),
	};

	c->rm_client = root;
	open_nodes(sim_gpu_of(c->gpu));
	rm_alloc(root, 0, root, CLASS_CLIENT, NULL, 0, RM_OK);
	rm_alloc(root, root, root + OBJ_DEVICE, CLASS_DEVICE, &device, sizeof(device), RM_OK);
	rm_alloc(root, root + OBJ_DEVICE, root + OBJ_SUBDEVICE, CLASS_SUBDEVICE, &subdevice,
		 sizeof(subdevice), RM_OK);
	rm_alloc(root, root + OBJ_DEVICE, root + OBJ_VASPACE, CLASS_VASPACE, NULL, 0, RM_OK);
	rm_alloc(root, root + OBJ_DEVICE, root + OBJ_GROUP, CLASS_GROUP, &group, sizeof(group), RM_OK);
	rm_alloc(root, root + OBJ_GROUP, root + OBJ_CHANNEL, CLASS_CHANNEL_HOPPER, &channel, sizeof(channel),
		 RM_OK);
	rm_alloc(root, root + OBJ_CHANNEL, root + OBJ_COMPUTE, CLASS_COMPUTE_HOPPER, NULL, 0, RM_OK);
	ioctl(ctl_fd, RM_CONTROL, &enable);
}

void rm_destroy_context(struct cu_ctx *c)
{
	rm_free(c->rm_client, c->rm_client + OBJ_DEVICE, c->rm_client + OBJ_GROUP);
	rm_free(c->rm_client, 0, c->rm_client);
}

uint32_t rm_alloc_memory(struct cu_ctx *c, uint64_t bytes, bool failed)
{
	struct rm_memory_params params = {.owner = c->rm_client, .bytes = bytes};
	uint32_t handle = atomic_fetch_add(&next_memory, 1);

	open_nodes(sim_gpu_of(c->gpu));
	rm_alloc(c->rm_client, c->rm_client + OBJ_DEVICE, handle, CLASS_MEMORY_LOCAL_USER, &params,
		 sizeof(params), failed ? RM_NO_MEMORY : RM_OK);
	return handle;
}

void rm_free_memory(struct cu_ctx *c, uint32_t handle)
{
	rm_free(c->rm_client, c->rm_client + OBJ_DEVICE, handle);
}
