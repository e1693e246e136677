// SPDX-License-Identifier: Apache-2.0
/* Which GPUs there are, what they are, and groups of them. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "dcgm_int.h"

#define MAX_ENTITIES 1024 /* 64 in the second version of the struct; there are no more than 16 GPUs */
#define GROUP_INFO_V2 VERSION_OF(776, 2)

struct device_attributes {
	unsigned int version;
	unsigned int clock_sets[770];
	unsigned int thermals[3];
	unsigned int power_limits[6];
	struct {
		unsigned int version;
		char brand[DCGM_MAX_STR_LENGTH], name[DCGM_MAX_STR_LENGTH], bus_id[DCGM_MAX_STR_LENGTH];
		char serial[DCGM_MAX_STR_LENGTH], uuid[DCGM_MAX_STR_LENGTH], vbios[DCGM_MAX_STR_LENGTH];
		char inforom[DCGM_MAX_STR_LENGTH];
		unsigned int pci_device, pci_subsystem;
		char driver[DCGM_MAX_STR_LENGTH];
		unsigned int virtualization;
	} ids;
	struct {
		unsigned int version, bar1_mib, total_mib, used_mib, free_mib;
	} memory;
	unsigned int settings[4];
};

struct group_info {
	unsigned int version, count;
	char name[DCGM_MAX_STR_LENGTH];
	struct entity_pair entities[MAX_ENTITIES];
};

DCGM_API dcgmReturn dcgmGetAllDevices(dcgmHandle handle, unsigned int ids[DCGM_MAX_NUM_DEVICES], int *count)
{
	dcgmReturn rc;

	if (!ids || !count)
		return DCGM_ST_BADPARAM;
	if (!connection_use(handle, &rc))
		return rc;
	*count = (int)dcgm.gpu_count;
	for (unsigned int i = 0; i < dcgm.gpu_count; i++)
		ids[i] = i;
	return connection_done(DCGM_ST_OK);
}

DCGM_API dcgmReturn dcgmGetAllSupportedDevices(dcgmHandle handle, unsigned int ids[DCGM_MAX_NUM_DEVICES],
					       int *count)
{
	return dcgmGetAllDevices(handle, ids, count);
}

DCGM_API dcgmReturn dcgmGetEntityGroupEntities(dcgmHandle handle, unsigned int entity_group,
					       unsigned int *entities, int *count, unsigned int flags)
{
	int room;

	(void)flags;
	if (!entities || !count)
		return DCGM_ST_BADPARAM;
	room = *count;
	*count = 0;
	if (entity_group != DCGM_FE_GPU)
		return DCGM_ST_OK; /* no switches; instances are in the hierarchy */
	return room < DCGM_MAX_NUM_DEVICES ? DCGM_ST_BADPARAM : dcgmGetAllDevices(handle, entities, count);
}

static void describe(const struct sim_gpu *gpu, struct device_attributes *a)
{
	memset(a, 0, sizeof(*a));
	snprintf(a->ids.brand, sizeof(a->ids.brand), "NVIDIA");
	snprintf(a->ids.name, sizeof(a->ids.name), "%s", gpu->spec.name);
	snprintf(a->ids.bus_id, sizeof(a->ids.bus_id), "00000000:%02X:00.0", gpu->spec.pci_bus);
	snprintf(a->ids.uuid, sizeof(a->ids.uuid), "%s", gpu->spec.uuid);
	snprintf(a->ids.driver, sizeof(a->ids.driver), "550.163.01");
	a->memory.total_mib = (unsigned int)(gpu->spec.vram_bytes >> 20);
	a->memory.used_mib = (unsigned int)(gpu->vram_used_bytes >> 20);
	a->memory.free_mib = a->memory.total_mib - a->memory.used_mib;
}

DCGM_API dcgmReturn dcgmGetDeviceAttributes(dcgmHandle handle, unsigned int gpu, struct device_attributes *a)
{
	unsigned int version = VERSION_OF(sizeof(*a), 3);
	dcgmReturn rc;

	if (!a)
		return DCGM_ST_BADPARAM;
	if (a->version != version)
		return DCGM_ST_VER_MISMATCH;
	if (!connection_use(handle, &rc))
		return rc;
	if (gpu >= dcgm.gpu_count)
		return connection_done(DCGM_ST_BADPARAM);
	describe(dcgm.gpus[gpu], a);
	a->version = version;
	return connection_done(DCGM_ST_OK);
}

/* ---- groups ---- */

bool group_gpus(const struct connection *c, uintptr_t group, uint32_t *gpus)
{
	*gpus = all_gpus();
	if (group == DCGM_GROUP_ALL_GPUS)
		return true;
	if (!group || group > MAX_GROUPS || !c->groups[group - 1].is_used)
		return false;
	*gpus = c->groups[group - 1].gpus;
	return true;
}

DCGM_API dcgmReturn dcgmGroupCreate(dcgmHandle handle, int type, const char *name, uintptr_t *group)
{
	struct connection *c;
	dcgmReturn rc;

	if (!name || !group || strlen(name) >= MAX_NAME)
		return DCGM_ST_BADPARAM;
	c = connection_use(handle, &rc);
	if (!c)
		return rc;
	for (unsigned int i = 0; i < MAX_GROUPS; i++) {
		struct group *g = &c->groups[i];

		if (g->is_used)
			continue;
		*g = (struct group){.is_used = true, .gpus = type == DCGM_GROUP_DEFAULT ? all_gpus() : 0};
		strcpy(g->name, name);
		*group = i + 1;
		return connection_done(DCGM_ST_OK);
	}
	return connection_done(DCGM_ST_MAX_LIMIT);
}

/* A group that its owner may change. */
static struct group *own_group(struct connection *c, uintptr_t group)
{
	return group && group <= MAX_GROUPS && c->groups[group - 1].is_used ? &c->groups[group - 1] : NULL;
}

DCGM_API dcgmReturn dcgmGroupDestroy(dcgmHandle handle, uintptr_t group)
{
	dcgmReturn rc;
	struct connection *c = connection_use(handle, &rc);

	if (!c)
		return rc;
	if (!own_group(c, group))
		return connection_done(DCGM_ST_NOT_CONFIGURED);
	own_group(c, group)->is_used = false;
	return connection_done(DCGM_ST_OK);
}

DCGM_API dcgmReturn dcgmGroupAddEntity(dcgmHandle handle, uintptr_t group, unsigned int entity_group,
				       unsigned int entity)
{
	dcgmReturn rc;
	struct connection *c = connection_use(handle, &rc);

	if (!c)
		return rc;
	if (!own_group(c, group))
		return connection_done(DCGM_ST_NOT_CONFIGURED);
	if (entity_group != DCGM_FE_GPU || entity >= dcgm.gpu_count)
		return connection_done(DCGM_ST_BADPARAM);
	own_group(c, group)->gpus |= 1u << entity;
	return connection_done(DCGM_ST_OK);
}

DCGM_API dcgmReturn dcgmGroupAddDevice(dcgmHandle handle, uintptr_t group, unsigned int gpu)
{
	return dcgmGroupAddEntity(handle, group, DCGM_FE_GPU, gpu);
}

DCGM_API dcgmReturn dcgmGroupGetInfo(dcgmHandle handle, uintptr_t group, struct group_info *info)
{
	struct connection *c;
	uint32_t gpus;
	dcgmReturn rc;

	if (!info)
		return DCGM_ST_BADPARAM;
	if (info->version != VERSION_OF(sizeof(*info), 3) && info->version != GROUP_INFO_V2)
		return DCGM_ST_VER_MISMATCH;
	c = connection_use(handle, &rc);
	if (!c)
		return rc;
	if (!group_gpus(c, group, &gpus))
		return connection_done(DCGM_ST_NOT_CONFIGURED);
	info->count = 0;
	snprintf(info->name, sizeof(info->name), "%s",
		 own_group(c, group) ? own_group(c, group)->name : "all");
	for (unsigned int i = 0; i < dcgm.gpu_count; i++)
		if (gpus & 1u << i)
			info->entities[info->count++] = (struct entity_pair){DCGM_FE_GPU, i};
	return connection_done(DCGM_ST_OK);
}

DCGM_API const char *errorString(dcgmReturn code)
{
	static const struct {
		dcgmReturn code;
		const char *text;
	} texts[] = {
		{DCGM_ST_OK, "Success"},
		{DCGM_ST_BADPARAM, "Bad parameter"},
		{DCGM_ST_NOT_CONFIGURED, "Not configured"},
		{DCGM_ST_NOT_SUPPORTED, "Not supported"},
		{DCGM_ST_INIT_ERROR, "Initialization failed"},
		{DCGM_ST_UNINITIALIZED, "Not initialized"},
		{DCGM_ST_TIMEOUT, "Timeout"},
		{DCGM_ST_VER_MISMATCH, "Version mismatch"},
		{DCGM_ST_UNKNOWN_FIELD, "Unknown field"},
		{DCGM_ST_NO_DATA, "No data"},
		{DCGM_ST_NOT_WATCHED, "Field is not watched"},
		{DCGM_ST_GPU_IS_LOST, "GPU is lost"},
		{DCGM_ST_CONNECTION_NOT_VALID, "Connection is not valid"},
		{DCGM_ST_MAX_LIMIT, "Limit reached"},
		{DCGM_ST_DUPLICATE_KEY, "Duplicate key"},
		{DCGM_ST_REQUIRES_ROOT, "Requires root"},
		{DCGM_ST_PROFILING_NOT_SUPPORTED, "Profiling is not supported"},
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].code == code)
			return texts[i].text;
	return "Error";
}

_Static_assert(sizeof(struct device_attributes) == 5220, "as in DCGM");
_Static_assert(sizeof(struct group_info) == 8456, "as in DCGM");
