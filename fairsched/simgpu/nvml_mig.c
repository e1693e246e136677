// SPDX-License-Identifier: Apache-2.0
/*
 * MIG: the mode, and the devices that a GPU in it consists of.
 *
 * What a GPU is split into is kept in DIR/migN (sim_mig.h), so that every process sees the same. A compute instance
 * is a device with a handle, which answers what nvml.h says is supported for one. While a process runs on it, it is in
 * use and cannot be destroyed (nvml_mig_split.c); nor can MIG mode be changed while one runs anywhere on the GPU.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "nvml_int.h"

static void mig_read(nvmlDevice d, struct mig_file *f)
{
	mig_load(getenv("FAIRSCHED_SIM_DIR"), d->shm->index, f);
}

nvmlReturn mig_check(nvmlDevice d, struct mig_file *f)
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

bool mig_in_use(nvmlDevice d)
{
	struct process_use use[1];

	return read_processes(d->shm, use, 1, true) != 0;
}

nvmlReturn mig_begin(nvmlDevice d, struct mig_file *f, int *fd)
{
	nvmlReturn rc = whole_check(d);

	if (rc)
		return rc;
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	*fd = mig_open(getenv("FAIRSCHED_SIM_DIR"), d->shm->index, f, true);
	return *fd < 0 ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

nvmlReturn mig_end(int fd, const struct mig_file *f, nvmlReturn rc)
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
	bool is_used = !rc && mig_in_use(d);

	for (unsigned int i = 0; !rc && i < MAX_INSTANCES; i++)
		is_used |= f.instances[i].part && mig_in_use(mig_device(d, i));
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
	nvmlReturn rc = mig_check(d, &f);

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
