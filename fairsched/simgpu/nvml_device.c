// SPDX-License-Identifier: Apache-2.0
/* Initialisation, the system, and what a device is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nvml_int.h"

#define DRIVER_VERSION "550.163.01"
#define NVML_VERSION "12.550.163.01"

struct nvml_library library;

struct nvml_pci_info {
	char bus_id_legacy[16];
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pci_device_id;
	unsigned int pci_subsystem_id;
	char bus_id[32];
};

static struct sim_gpu *map_gpu(const char *dir, unsigned int index)
{
	char path[512], name[SIM_NAME_BYTES];
	struct sim_gpu *shm;
	int fd;

	sim_file_name(name, index);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	shm = mmap(NULL, sizeof(*shm), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return shm == MAP_FAILED || shm->magic != SIM_MAGIC || shm->abi != SIM_ABI ? NULL : shm;
}

NVML_API nvmlReturn nvmlInitWithFlags(unsigned int flags)
{
	const char *dir = getenv("FAIRSCHED_SIM_DIR");

	(void)flags;
	if (library.init_count++)
		return NVML_SUCCESS;
	library.count = dir ? 1 : 0;
	snprintf(library.dir, sizeof(library.dir), "%s", dir ? dir : "");
	for (unsigned int i = 0; i < library.count; i++) {
		library.devices[i].shm = map_gpu(dir, i);
		if (!library.devices[i].shm) {
			library.count = i;
			break;
		}
		library.count = library.devices[0].shm->gpu_count;
		for (unsigned int k = 0; k < MAX_INSTANCES; k++)
			library.instances[i][k] = (struct nvml_device){map_gpu(dir, sim_instance_index(i, k)),
								       &library.devices[i], k};
	}
	if (library.count && !atomic_load(&library.devices[0].shm->dead))
		return NVML_SUCCESS;
	library.init_count = 0;
	return NVML_ERROR_DRIVER_NOT_LOADED;
}

NVML_API nvmlReturn nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn nvmlInit(void)
{
	return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn nvmlShutdown(void)
{
	if (!library.init_count)
		return NVML_ERROR_UNINITIALIZED;
	if (--library.init_count)
		return NVML_SUCCESS;
	for (unsigned int i = 0; i < library.count; i++) {
		munmap(library.devices[i].shm, sizeof(struct sim_gpu));
		for (unsigned int k = 0; k < MAX_INSTANCES; k++)
			munmap(library.instances[i][k].shm, sizeof(struct sim_gpu));
	}
	library.count = 0;
	return NVML_SUCCESS;
}

nvmlReturn device_check(nvmlDevice d)
{
	unsigned int gpu, compute;

	if (!library.init_count)
		return NVML_ERROR_UNINITIALIZED;
	for (unsigned int i = 0; i < library.count; i++)
		if (d == &library.devices[i])
			return gpu_is_lost(d) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
	for (unsigned int i = 0; i < library.count; i++)
		for (unsigned int k = 0; k < MAX_INSTANCES; k++)
			if (d == &library.instances[i][k] && d->shm && mig_ids(d, &gpu, &compute))
				return gpu_is_lost(d->parent) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlDevice mig_device(nvmlDevice gpu, unsigned int slot)
{
	return &library.instances[gpu - library.devices][slot];
}

nvmlReturn whole_check(nvmlDevice d)
{
	nvmlReturn rc = device_check(d);

	return rc || !d->parent ? rc : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn counters_check(nvmlDevice d)
{
	nvmlReturn rc = whole_check(d);

	return rc || !mig_is_enabled(d) ? rc : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn copy_text(char *out, unsigned int length, const char *text)
{
	if (!out)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(out, text, strlen(text) + 1);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlSystemGetDriverVersion(char *out, unsigned int length)
{
	return library.init_count ? copy_text(out, length, DRIVER_VERSION) : NVML_ERROR_UNINITIALIZED;
}

NVML_API nvmlReturn nvmlSystemGetNVMLVersion(char *out, unsigned int length)
{
	return copy_text(out, length, NVML_VERSION);
}

NVML_API nvmlReturn nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	*version = 12040;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlSystemGetCudaDriverVersion(int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML_API nvmlReturn nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int length)
{
	char path[64];
	char name[256] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	f = fopen(path, "r");
	if (!f)
		return NVML_ERROR_NOT_FOUND;
	if (fgets(name, sizeof(name), f))
		name[strcspn(name, "\n")] = '\0';
	fclose(f);
	return copy_text(out, length, name);
}

NVML_API nvmlReturn nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = library.count;
	return library.init_count ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

NVML_API nvmlReturn nvmlDeviceGetCount(unsigned int *count) __attribute__((alias("nvmlDeviceGetCount_v2")));

NVML_API nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice *out)
{
	if (!library.init_count)
		return NVML_ERROR_UNINITIALIZED;
	if (index >= library.count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*out = &library.devices[index];
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice *out)
	__attribute__((alias("nvmlDeviceGetHandleByIndex_v2")));

NVML_API nvmlReturn nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice *out)
{
	for (unsigned int i = 0; i < library.count; i++)
		if (!strcmp(library.devices[i].shm->spec.uuid, uuid))
			return nvmlDeviceGetHandleByIndex_v2(i, out);
	for (unsigned int i = 0; i < library.count; i++)
		for (unsigned int k = 0; k < MAX_INSTANCES; k++) {
			*out = mig_device(&library.devices[i], k);
			if (!device_check(*out) && !strcmp((*out)->shm->spec.uuid, uuid))
				return NVML_SUCCESS;
		}
	return library.init_count ? NVML_ERROR_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
}

static void format_bus_id(nvmlDevice d, char *out, size_t size)
{
	snprintf(out, size, "00000000:%02X:00.0", d->shm->spec.pci_bus);
}

NVML_API nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice *out)
{
	unsigned int domain, bus, device, function = 0;

	if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < library.count; i++)
		if (!domain && !device && library.devices[i].shm->spec.pci_bus == bus)
			return nvmlDeviceGetHandleByIndex_v2(i, out);
	return library.init_count ? NVML_ERROR_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
}

NVML_API nvmlReturn nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice *out)
	__attribute__((alias("nvmlDeviceGetHandleByPciBusId_v2")));

NVML_API nvmlReturn nvmlDeviceGetName(nvmlDevice d, char *out, unsigned int length)
{
	nvmlReturn rc = device_check(d);

	return rc ? rc : copy_text(out, length, d->shm->spec.name);
}

NVML_API nvmlReturn nvmlDeviceGetUUID(nvmlDevice d, char *out, unsigned int length)
{
	nvmlReturn rc = device_check(d);

	return rc ? rc : copy_text(out, length, d->shm->spec.uuid);
}

NVML_API nvmlReturn nvmlDeviceGetIndex(nvmlDevice d, unsigned int *index)
{
	nvmlReturn rc = device_check(d);

	if (!rc)
		*index = d->parent ? d->slot : d->shm->index;
	return rc;
}

NVML_API nvmlReturn nvmlDeviceGetMinorNumber(nvmlDevice d, unsigned int *minor)
{
	nvmlReturn rc = whole_check(d);

	return rc ? rc : nvmlDeviceGetIndex(d, minor);
}

NVML_API nvmlReturn nvmlDeviceGetPciInfo_v3(nvmlDevice d, struct nvml_pci_info *info)
{
	nvmlReturn rc = device_check(d);

	if (rc)
		return rc;
	memset(info, 0, sizeof(*info));
	info->bus = d->shm->spec.pci_bus;
	info->pci_device_id = 0x233010de;
	format_bus_id(d, info->bus_id, sizeof(info->bus_id));
	snprintf(info->bus_id_legacy, sizeof(info->bus_id_legacy), "0000:%02X:00.0",
		 d->shm->spec.pci_bus & 0xff);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetCudaComputeCapability(nvmlDevice d, int *major, int *minor)
{
	nvmlReturn rc = device_check(d);

	if (!rc) {
		*major = (int)d->shm->spec.cc_major;
		*minor = (int)d->shm->spec.cc_minor;
	}
	return rc;
}

NVML_API const char *nvmlErrorString(nvmlReturn code)
{
	switch (code) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NO_PERMISSION:
		return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT:
		return "Timeout";
	case NVML_ERROR_GPU_IS_LOST:
		return "GPU is lost";
	case NVML_ERROR_IN_USE:
		return "In use by another client";
	case NVML_ERROR_INSUFFICIENT_RESOURCES:
		return "Insufficient Resources";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
		return "Argument version mismatch";
	default:
		return "Unknown Error";
	}
}
