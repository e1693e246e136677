// SPDX-License-Identifier: Apache-2.0
/*
 * MIG: mode, profiles, GPU instances and their compute instances, in the sizes and places of an A100.
 *
 * What a GPU is split into is kept in DIR/migN, made by whoever changes it first, so that every process sees the
 * same. The engine knows nothing of it: contexts run as on a whole GPU, and which instance a process is in is not
 * modelled. While any process runs on the GPU its instances are in use.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_int.h"
#include "nvml_mig.h"

#define MEMORY_SLICES 8
#define PROFILES 5
#define PROFILE_INFO_V2 0x02000098u

static const struct mig_profile {
	unsigned int id, slices, memory_slices, most;
	int starts[MAX_INSTANCES]; /* memory slices at which it may begin; -1 = no more */
} profiles[PROFILES] = {
	{19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
	{14, 2, 2, 3, {0, 2, 4, -1}},
	{9, 3, 4, 2, {0, 4, -1}},
	{5, 4, 4, 1, {0, -1}},
	{0, 7, 8, 1, {0, -1}},
};

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

static nvmlReturn enabled_check(nvmlDevice d, struct mig_file *f)
{
	nvmlReturn rc = device_check(d);

	if (rc)
		return rc;
	mig_read(d, f);
	return f->is_enabled ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
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

	*activation = (unsigned int)rc;
	if (rc)
		return rc;
	memset(&f, 0, sizeof(f));
	f.is_enabled = !!mode;
	return mig_end(fd, &f, NVML_SUCCESS);
}

NVML_API nvmlReturn nvmlDeviceGetMaxMigDeviceCount(nvmlDevice d, unsigned int *count)
{
	*count = MAX_INSTANCES;
	return device_check(d);
}

NVML_API nvmlReturn nvmlDeviceIsMigDeviceHandle(nvmlDevice d, unsigned int *is_mig)
{
	*is_mig = 0;
	return device_check(d);
}

NVML_API nvmlReturn nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice d, unsigned int index, nvmlDevice *out)
{
	nvmlReturn rc = device_check(d);

	(void)index;
	(void)out;
	return rc ? rc : NVML_ERROR_NOT_FOUND; /* handles of instances are not modelled */
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
	p = &profiles[number];
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
		if (profiles[i].id == profile_id)
			return i;
	return -1;
}

/* The memory slices in use, as bits; and how many instances of `number` there are. */
static unsigned int taken(const struct mig_file *f, int number, unsigned int *count)
{
	unsigned int bits = 0;

	*count = 0;
	for (int i = 0; i < MAX_INSTANCES; i++) {
		const struct mig_instance *one = &f->instances[i];

		if (!one->id)
			continue;
		bits |= ((1u << profiles[one->profile].memory_slices) - 1) << one->start;
		*count += (int)one->profile == number;
	}
	return bits;
}

static unsigned int compute_taken(const struct mig_file *f)
{
	unsigned int sum = 0;

	for (int i = 0; i < MAX_INSTANCES; i++)
		if (f->instances[i].id)
			sum += profiles[f->instances[i].profile].slices;
	return sum;
}

/* Where one more of `number` can begin; -1 = nowhere. The last place first: it leaves most room for large ones. */
static int place_for(const struct mig_file *f, int number)
{
	const struct mig_profile *p = &profiles[number];
	unsigned int count, bits = taken(f, number, &count);

	if (compute_taken(f) + p->slices > MAX_INSTANCES)
		return -1;
	for (int i = (int)p->most - 1; i >= 0; i--)
		if (!(bits & ((1u << p->memory_slices) - 1) << p->starts[i]))
			return p->starts[i];
	return -1;
}

NVML_API nvmlReturn nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice d, unsigned int profile_id,
							      unsigned int *count)
{
	struct mig_file f;
	nvmlReturn rc = enabled_check(d, &f);
	int number = number_of(profile_id), start;

	if (rc)
		return rc;
	if (number < 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	for (int i = 0; i < MAX_INSTANCES && (start = place_for(&f, number)) >= 0; i++) {
		if (f.instances[i].id)
			continue;
		f.instances[i] = (struct mig_instance){~0u, (uint32_t)number, (uint32_t)start, 0};
		++*count;
	}
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
	int fd, number = number_of(profile_id), start = -1;
	nvmlReturn rc = mig_begin(d, &f, &fd);

	if (rc)
		return rc;
	if (!f.is_enabled)
		rc = NVML_ERROR_NOT_SUPPORTED;
	else if (number < 0)
		rc = NVML_ERROR_INVALID_ARGUMENT;
	else if ((start = place_for(&f, number)) < 0)
		rc = NVML_ERROR_INSUFFICIENT_RESOURCES;
	for (unsigned int i = 0; !rc && i < MAX_INSTANCES; i++)
		if (!f.instances[i].id) {
			f.instances[i] =
				(struct mig_instance){++f.last_id, (uint32_t)number, (uint32_t)start, 0};
			*out = handle_of(gpu_instances, d, i);
			break;
		}
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
			profiles[one.profile].id,
			{one.start, profiles[one.profile].memory_slices},
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
	if (profiles[number].slices > profiles[one.profile].slices)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(info, 0, sizeof(*info));
	info->id = number;
	info->slices = profiles[number].slices;
	info->most = profiles[one.profile].slices / profiles[number].slices;
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
	if (number >= PROFILES || profiles[number].slices > profiles[one->profile].slices)
		return mig_end(fd, &f, NVML_ERROR_INVALID_ARGUMENT);
	if (one->part)
		return mig_end(fd, &f, NVML_ERROR_INSUFFICIENT_RESOURCES);
	one->part = number + 1;
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
	f.instances[part->slot].part = 0;
	return mig_end(fd, &f, NVML_SUCCESS);
}
