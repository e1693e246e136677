// SPDX-License-Identifier: Apache-2.0
/*
 * GPU instances and compute instances, as MIG has them: which there are, and what number DCGM gives each.
 *
 * A GPU instance is an entity with fields of profiling. Its compute instance, one at most here, is told of and has none.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcgm_int.h"

#define NONE 0xffffffffu
#define FIRST_COMPUTE 3   /* numbers of the two kinds have nothing to do with each other */
#define MAX_HIERARCHY 448 /* 32 devices of 14 instances of both kinds */

struct hierarchy_entry {
	struct entity_pair entity, parent;
	char gpu_uuid[128];
	unsigned int nvml_gpu, nvml_instance, nvml_compute_instance, profile, slices;
};

struct hierarchy {
	unsigned int version, count;
	struct hierarchy_entry entries[MAX_HIERARCHY];
};

static struct mig_file split_of(unsigned int gpu)
{
	struct mig_file f;

	mig_load(getenv("FAIRSCHED_SIM_DIR"), gpu, &f);
	return f;
}

bool instance_is_there(unsigned int gpu, unsigned int slot)
{
	struct mig_file f = split_of(gpu);

	return f.is_enabled && f.instances[slot].id;
}

int device_of(unsigned int entity_group, unsigned int entity)
{
	if (entity_group == DCGM_FE_GPU && entity < dcgm.gpu_count)
		return (int)entity;
	if (entity_group != DCGM_FE_GPU_I || entity >= dcgm.gpu_count * SIM_MAX_INSTANCES ||
	    !instance_is_there(entity / SIM_MAX_INSTANCES, entity % SIM_MAX_INSTANCES))
		return -1;
	return (int)(SIM_MAX_GPUS + entity);
}

static void add(struct hierarchy *out, unsigned int gpu, unsigned int slot, const struct mig_instance *one,
		unsigned int group)
{
	unsigned int entity = gpu * SIM_MAX_INSTANCES + slot;
	bool is_compute = group == DCGM_FE_GPU_CI;
	struct hierarchy_entry *e = &out->entries[out->count++];

	*e = (struct hierarchy_entry){.entity = {group, is_compute ? entity + FIRST_COMPUTE : entity},
				      .parent = {is_compute ? DCGM_FE_GPU_I : DCGM_FE_GPU,
						 is_compute ? entity : gpu},
				      .nvml_gpu = gpu,
				      .nvml_instance = one->id,
				      .nvml_compute_instance = is_compute ? 0 : NONE,
				      .profile = mig_profiles[one->profile].id,
				      .slices = mig_profiles[one->profile].slices};
	snprintf(e->gpu_uuid, sizeof(e->gpu_uuid), "%s", dcgm.gpus[gpu]->spec.uuid);
}

DCGM_API dcgmReturn dcgmGetGpuInstanceHierarchy(dcgmHandle handle, struct hierarchy *out)
{
	dcgmReturn rc;

	if (!out)
		return DCGM_ST_BADPARAM;
	if (out->version != VERSION_OF(sizeof(*out), 2))
		return DCGM_ST_VER_MISMATCH;
	if (!connection_use(handle, &rc))
		return rc;
	out->count = 0;
	for (unsigned int gpu = 0; gpu < dcgm.gpu_count; gpu++) {
		struct mig_file f = split_of(gpu);

		for (unsigned int slot = 0; f.is_enabled && slot < SIM_MAX_INSTANCES; slot++) {
			if (f.instances[slot].id)
				add(out, gpu, slot, &f.instances[slot], DCGM_FE_GPU_I);
			if (f.instances[slot].id && f.instances[slot].part)
				add(out, gpu, slot, &f.instances[slot], DCGM_FE_GPU_CI);
		}
	}
	return connection_done(DCGM_ST_OK);
}

_Static_assert(sizeof(struct hierarchy_entry) == 164, "as in DCGM");
