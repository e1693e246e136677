// SPDX-License-Identifier: Apache-2.0
/*
 * MIG: mode, profiles, GPU instances and their compute instances, in the sizes and places of an A100.
 *
 * What a GPU is split into is kept in DIR/migN (sim_mig.h), so that every process sees the same. A compute instance
 * is a device with a handle, which answers what nvml.h says is supported for one. While a process runs on it, it is in
 * use and cannot be destroyed; nor can MIG mode be changed while one runs anywhere on the GPU.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void mig_read(nvmlDevice d, struct mig_file *f)
{
	mig_load(getenv("FAIRSCHED_SIM_DIR"), d->shm->index, f);
}

static nvmlReturn enabled_check(nvmlDevice d, struct mig_file *f)
{
	nvmlReturn rc = whole_check(d);

	if (rc)
		return rc;
	mig_read(d, f);
	return f->is_enabled ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

bool mig_is_enabled(nvmlDevice d)
{
	struct mig_file f;

	mig_read(d, &f);
	return f.is_enabled;
}

bool mig_ids(nvmlDevice d, unsigned int *gpu_instance, unsigned int *compute_instance)
{
	struct mig_file f;

	mig_read(d->parent, &f);
	*gpu_instance = f.instances[d->slot].id;
	*compute_instance = 0; /* the only one of its GPU instance */
	return f.is_enabled && f.instances[d->slot].part;
}

static bool is_in_use(nvmlDevice d)
{
	struct process_use use[1];

	return read_processes(d->shm, use, 1, true) != 0;
}

/* Begin a change, with the file locked. On success the caller ends it with mig_end. */
static nvmlReturn mig_begin(nvmlDevice d, struct mig_file *f, int *fd)
{
	nvmlReturn rc = whole_check(d);

	if (rc)
		return rc;
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	*fd = mig_open(getenv("FAIRSCHED_SIM_DIR"), d->shm->index, f, true);
	return *fd < 0 ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

/* Write it unless `rc` is an error, and let the lock go. */
static nvmlReturn mig_end(int fd, const struct mig_file *f, nvmlReturn rc)
{
	if (!rc)
		return mig_save(fd, f) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
	close(fd);
	return rc;
}

NVML_API nvmlReturn nvmlDeviceGetMigMode(nvmlDevice d, unsigned int *current, unsigned int *pending)
{
	nvmlReturn rc = device_check(d);
	struct mig_file f = {0};

	if (!rc)
		mig_read(d, &f);
	*current = *pending = f.is_enabled;
	return rc;
}

/* As on Hopper: takes effect at once, without a reset. */
NVML_API nvmlReturn nvmlDeviceSetMigMode(nvmlDevice d, unsigned int mode, unsigned int *activation)
{
	struct mig_file f;
	int fd;
	nvmlReturn rc = mig_begin(d, &f, &fd);
	bool is_used = !rc && is_in_use(d);

	for (unsigned int i = 0; !rc && i < MAX_INSTANCES; i++)
		is_used |= f.instances[i].part && is_in_use(mig_device(d, i));
	if (!rc) {
		f.is_enabled = !!mode;
		memset(f.instances, 0, sizeof(f.instances));
		rc = mig_end(fd, &f, is_used ? NVML_ERROR_IN_USE : NVML_SUCCESS);
	}
	*activation = (unsigned int)rc;
	return rc;
}

NVML_API nvmlReturn nvmlDeviceGetMaxMigDeviceCount(nvmlDevice d, unsigned int *count)
{
	nvmlReturn rc = whole_check(d);

	*count = !rc && mig_is_enabled(d) ? MAX_INSTANCES : 0;
	return rc;
}

NVML_API nvmlReturn nvmlDeviceIsMigDeviceHandle(nvmlDevice d, unsigned int *is_mig)
{
	*is_mig = d && d->parent;
	return device_check(d);
}

NVML_API nvmlReturn nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice d, unsigned int index, nvmlDevice *out)
{
	struct mig_file f;
	nvmlReturn rc = enabled_check(d, &f);

	if (rc)
		return rc;
	if (index >= MAX_INSTANCES)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (!f.instances[index].part)
		return NVML_ERROR_NOT_FOUND;
	*out = mig_device(d, index);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice d, nvmlDevice *out)
{
	nvmlReturn rc = device_check(d);

	if (rc || !d->parent)
		return rc ? rc : NVML_ERROR_INVALID_ARGUMENT;
	*out = d->parent;
	return NVML_SUCCESS;
}

static nvmlReturn instance_ids(nvmlDevice d, unsigned int *gpu_instance, unsigned int *compute_instance)
{
	nvmlReturn rc = device_check(d);

	if (rc || !d->parent)
		return rc ? rc : NVML_ERROR_NOT_SUPPORTED;
	return mig_ids(d, gpu_instance, compute_instance) ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn nvmlDeviceGetGpuInstanceId(nvmlDevice d, unsigned int *id)
{
	unsigned int other;

	return instance_ids(d, id, &other);
}

NVML_API nvmlReturn nvmlDeviceGetComputeInstanceId(nvmlDevice d, unsigned int *id)
{
	unsigned int other;

	return instance_ids(d, &other, id);
}

struct attributes {
	unsigned int sms, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
	unsigned long long memory_mib;
};

NVML_API nvmlReturn nvmlDeviceGetAttributes_v2(nvmlDevice d, struct attributes *out)
{
	const struct sim_spec *spec;
	struct mig_file f;
	nvmlReturn rc = device_check(d);

	if (rc || !d->parent)
		return rc ? rc : NVML_ERROR_NOT_SUPPORTED;
	spec = &d->shm->spec;
	mig_read(d->parent, &f);
	memset(out, 0, sizeof(*out));
	out->sms = spec->sm_count;
	out->copy = out->compute_slices = spec->slices;
	out->gpu_slices = mig_profiles[f.instances[d->slot].profile].slices;
	out->memory_mib = spec->vram_bytes >> 20;
	return NVML_SUCCESS;
}

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
	nvmlReturn rc = enabled_check(d, &f);
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
	nvmlReturn rc = enabled_check(d, &f);
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
	nvmlReturn rc = instance ? enabled_check(instance->device, &f) : NVML_ERROR_INVALID_ARGUMENT;

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
	if (f.instances[part->slot].part && is_in_use(mig_device(part->device, part->slot)))
		return mig_end(fd, &f, NVML_ERROR_IN_USE);
	f.instances[part->slot].part = 0;
	return mig_end(fd, &f, NVML_SUCCESS);
}
