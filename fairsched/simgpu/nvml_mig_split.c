// SPDX-License-Identifier: Apache-2.0
/*
 * How a GPU in MIG mode is split: profiles, GPU instances and their compute instances, made and destroyed, in the sizes
 * and places of an A100.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_int.h"

#define PROFILE_INFO_V2 0x02000098u

/* Handles: the address of one of these says device and slot. */
struct nvml_gpu_instance {
	nvmlDevice device;
	unsigned int slot;
};

static struct nvml_gpu_instance gpu_instances[SIM_MAX_GPUS][MAX_INSTANCES];
static struct nvml_gpu_instance compute_instances[SIM_MAX_GPUS][MAX_INSTANCES];

struct profile_info {
	unsigned int id, is_p2p, slices, most, sms, copy, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
};

struct profile_info_v2 {
	unsigned int version, id, is_p2p, slices, most, sms, copy, decoders, encoders, jpeg, ofa;
	unsigned long long memory_mib;
	char name[96];
};

struct part_profile_info {
	unsigned int id, slices, most, sms, copy, decoders, encoders, jpeg, ofa;
};

struct placement {
	unsigned int start, size;
};

struct gpu_instance_info {
	nvmlDevice device;
	unsigned int id, profile_id;
	struct placement placement;
};

static unsigned long long memory_mib(nvmlDevice d, const struct mig_profile *p)
{
	return (d->shm->spec.vram_bytes >> 20) * p->memory_slices / MEMORY_SLICES;
}

static nvmlReturn describe(nvmlDevice d, unsigned int number, struct profile_info *info)
{
	nvmlReturn rc = device_check(d);
	const struct mig_profile *p;

	if (rc)
		return rc;
	if (number >= PROFILES)
		return NVML_ERROR_NOT_SUPPORTED;
	p = &mig_profiles[number];
	memset(info, 0, sizeof(*info));
	info->id = p->id;
	info->slices = p->slices;
	info->most = p->most;
	info->sms = d->shm->spec.sm_count * p->slices / MAX_INSTANCES;
	info->copy = p->slices;
	info->memory_mib = memory_mib(d, p);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice d, unsigned int number,
							struct profile_info *info)
{
	return describe(d, number, info);
}

NVML_API nvmlReturn nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice d, unsigned int number,
							 struct profile_info_v2 *info)
{
	struct profile_info v1;
	nvmlReturn rc = describe(d, number, &v1);

	if (rc)
		return rc;
	if (info->version != PROFILE_INFO_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memcpy(&info->id, &v1, offsetof(struct profile_info, memory_mib));
	info->memory_mib = v1.memory_mib;
	snprintf(info->name, sizeof(info->name), "MIG %ug.%llugb", v1.slices, (v1.memory_mib + 1023) >> 10);
	return NVML_SUCCESS;
}

static int number_of(unsigned int profile_id)
{
	for (int i = 0; i < PROFILES; i++)
		if (mig_profiles[i].id == profile_id)
			return i;
	return -1;
}

NVML_API nvmlReturn nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice d, unsigned int profile_id,
							      unsigned int *count)
{
	struct mig_file f;
	nvmlReturn rc = mig_check(d, &f);
	int number = number_of(profile_id);

	if (rc)
		return rc;
	if (number < 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (*count = 0; mig_add(&f, number) >= 0;)
		++*count;
	return NVML_SUCCESS;
}

static struct nvml_gpu_instance *handle_of(struct nvml_gpu_instance table[][MAX_INSTANCES], nvmlDevice d,
					   unsigned int slot)
{
	struct nvml_gpu_instance *handle = &table[d->shm->index][slot];

	handle->device = d;
	handle->slot = slot;
	return handle;
}

NVML_API nvmlReturn nvmlDeviceGetGpuInstances(nvmlDevice d, unsigned int profile_id,
					      struct nvml_gpu_instance **out, unsigned int *count)
{
	struct mig_file f;
	nvmlReturn rc = mig_check(d, &f);
	int number = number_of(profile_id);

	*count = 0;
	if (rc)
		return rc;
	if (number < 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < MAX_INSTANCES; i++)
		if (f.instances[i].id && (int)f.instances[i].profile == number)
			out[(*count)++] = handle_of(gpu_instances, d, i);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceCreateGpuInstance(nvmlDevice d, unsigned int profile_id,
						struct nvml_gpu_instance **out)
{
	struct mig_file f;
	int fd, number = number_of(profile_id), slot = -1;
	nvmlReturn rc = mig_begin(d, &f, &fd);

	if (rc)
		return rc;
	if (!f.is_enabled)
		rc = NVML_ERROR_NOT_SUPPORTED;
	else if (number < 0)
		rc = NVML_ERROR_INVALID_ARGUMENT;
	else if ((slot = mig_add(&f, number)) < 0)
		rc = NVML_ERROR_INSUFFICIENT_RESOURCES;
	else
		*out = handle_of(gpu_instances, d, (unsigned int)slot);
	return mig_end(fd, &f, rc);
}

/* Begin a change of an instance that is there. */
static nvmlReturn instance_begin(const struct nvml_gpu_instance *instance, struct mig_file *f, int *fd)
{
	nvmlReturn rc = instance ? mig_begin(instance->device, f, fd) : NVML_ERROR_INVALID_ARGUMENT;

	if (!rc && !f->instances[instance->slot].id)
		rc = mig_end(*fd, f, NVML_ERROR_NOT_FOUND);
	return rc;
}

NVML_API nvmlReturn nvmlGpuInstanceDestroy(struct nvml_gpu_instance *instance)
{
	struct mig_file f;
	int fd;
	nvmlReturn rc = instance_begin(instance, &f, &fd);

	if (rc)
		return rc;
	if (f.instances[instance->slot].part)
		return mig_end(fd, &f, NVML_ERROR_IN_USE);
	memset(&f.instances[instance->slot], 0, sizeof(f.instances[0]));
	return mig_end(fd, &f, NVML_SUCCESS);
}

static nvmlReturn instance_read(const struct nvml_gpu_instance *instance, struct mig_instance *out)
{
	struct mig_file f;
	nvmlReturn rc = instance ? mig_check(instance->device, &f) : NVML_ERROR_INVALID_ARGUMENT;

	if (rc)
		return rc;
	*out = f.instances[instance->slot];
	return out->id ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn nvmlGpuInstanceGetInfo(struct nvml_gpu_instance *instance, struct gpu_instance_info *info)
{
	struct mig_instance one;
	nvmlReturn rc = instance_read(instance, &one);

	if (!rc)
		*info = (struct gpu_instance_info){
			instance->device,
			one.id,
			mig_profiles[one.profile].id,
			{one.start, mig_profiles[one.profile].memory_slices},
		};
	return rc;
}

NVML_API nvmlReturn nvmlGpuInstanceGetComputeInstanceProfileInfo(struct nvml_gpu_instance *instance,
								 unsigned int number, unsigned int engines,
								 struct part_profile_info *info)
{
	struct mig_instance one;
	nvmlReturn rc = instance_read(instance, &one);

	if (rc)
		return rc;
	if (engines || number >= PROFILES)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (mig_profiles[number].slices > mig_profiles[one.profile].slices)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info, 0, sizeof(*info));
	info->id = number;
	info->slices = mig_profiles[number].slices;
	info->most = mig_profiles[one.profile].slices / mig_profiles[number].slices;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlGpuInstanceGetComputeInstances(struct nvml_gpu_instance *instance,
						       unsigned int number, struct nvml_gpu_instance **out,
						       unsigned int *count)
{
	struct mig_instance one;
	nvmlReturn rc = instance_read(instance, &one);

	*count = 0;
	if (!rc && one.part == number + 1)
		out[(*count)++] = handle_of(compute_instances, instance->device, instance->slot);
	return rc;
}

/* One compute instance in each GPU instance, of any size that fits. */
NVML_API nvmlReturn nvmlGpuInstanceCreateComputeInstance(struct nvml_gpu_instance *instance,
							 unsigned int number, struct nvml_gpu_instance **out)
{
	struct mig_file f;
	struct mig_instance *one;
	int fd;
	nvmlReturn rc = instance_begin(instance, &f, &fd);

	if (rc)
		return rc;
	one = &f.instances[instance->slot];
	if (number >= PROFILES || mig_profiles[number].slices > mig_profiles[one->profile].slices)
		return mig_end(fd, &f, NVML_ERROR_INVALID_ARGUMENT);
	if (one->part)
		return mig_end(fd, &f, NVML_ERROR_INSUFFICIENT_RESOURCES);
	mig_fill(&f, (int)instance->slot, (int)number, &instance->device->shm->spec,
		 &mig_device(instance->device, instance->slot)->shm->spec);
	*out = handle_of(compute_instances, instance->device, instance->slot);
	return mig_end(fd, &f, NVML_SUCCESS);
}

NVML_API nvmlReturn nvmlComputeInstanceDestroy(struct nvml_gpu_instance *part)
{
	struct mig_file f;
	int fd;
	nvmlReturn rc = instance_begin(part, &f, &fd);

	if (rc)
		return rc;
	if (f.instances[part->slot].part && mig_in_use(mig_device(part->device, part->slot)))
		return mig_end(fd, &f, NVML_ERROR_IN_USE);
	f.instances[part->slot].part = 0;
	return mig_end(fd, &f, NVML_SUCCESS);
}
