// SPDX-License-Identifier: Apache-2.0
/* Memory, utilization, processes: what changes while a device is used. */
#include <string.h>

#include "nvml_int.h"

#define NO_INSTANCE 0xffffffffu
#define MEMORY_V2 0x02000028u
#define PROCESSES_UTILIZATION_V1 0x01000018u

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml_memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

struct nvml_utilization {
	unsigned int gpu, memory;
};

struct nvml_process_v1 {
	unsigned int pid;
	unsigned long long bytes;
};

struct nvml_process {
	unsigned int pid;
	unsigned long long bytes;
	unsigned int gpu_instance, compute_instance;
};

struct nvml_process_sample {
	unsigned int pid;
	unsigned long long time_us;
	unsigned int sm, memory, encoder, decoder;
};

struct nvml_process_sample_v1 {
	unsigned long long time_us;
	unsigned int pid, sm, memory, encoder, decoder, jpeg, ofa;
};

struct nvml_processes_utilization {
	unsigned int version;
	unsigned int count;
	unsigned long long after_us;
	struct nvml_process_sample_v1 *samples;
};

NVML_API nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice d, struct nvml_memory *m)
{
	nvmlReturn rc = device_check(d);

	if (rc)
		return rc;
	m->total = d->shm->spec.vram_bytes;
	m->used = d->shm->vram_used_bytes;
	m->free = m->total - m->used;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice d, struct nvml_memory_v2 *m)
{
	struct nvml_memory v1;
	nvmlReturn rc;

	if (m->version != MEMORY_V2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	rc = nvmlDeviceGetMemoryInfo(d, &v1);
	if (rc)
		return rc;
	m->total = v1.total;
	m->used = v1.used;
	m->free = v1.free;
	m->reserved = 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetUtilizationRates(nvmlDevice d, struct nvml_utilization *u)
{
	nvmlReturn rc = counters_check(d);

	if (rc)
		return rc;
	u->gpu = (unsigned int)d->shm->util_pct;
	u->memory = u->gpu / 2; /* bandwidth is not modelled: a plausible figure */
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetTemperature(nvmlDevice d, int sensor, unsigned int *celsius)
{
	nvmlReturn rc = whole_check(d);

	(void)sensor;
	if (!rc)
		*celsius = 35 + (unsigned int)d->shm->util_pct * 35 / 100;
	return rc;
}

NVML_API nvmlReturn nvmlDeviceGetPowerUsage(nvmlDevice d, unsigned int *milliwatts)
{
	nvmlReturn rc = whole_check(d);

	if (!rc)
		*milliwatts = 60000 + (unsigned int)d->shm->util_pct * 2400;
	return rc;
}

struct instance_ids {
	unsigned int gpu, compute;
};

/* Those on one device, behind the `count` ones that are known; returns how many there are then. */
static unsigned int add_processes(nvmlDevice d, bool of_mps, struct process_use *use,
				  struct instance_ids *ids, unsigned int count)
{
	struct instance_ids where = {NO_INSTANCE, NO_INSTANCE};
	unsigned int end = count + read_processes(d->shm, use + count, MAX_PROCESSES - count, true);

	if (d->parent)
		mig_ids(d, &where.gpu, &where.compute);
	for (unsigned int i = count; i < end; i++) {
		if (use[i].is_mps_client != of_mps)
			continue;
		use[count] = use[i];
		ids[count++] = where;
	}
	return count;
}

struct list {
	unsigned int *count;
	void *out;
	size_t entry_bytes; /* tells the old struct from the newer one; their first two fields are the same */
	bool of_mps;        /* clients of an MPS server; the other lists are without them */
};

static nvmlReturn running_processes(nvmlDevice d, struct list list)
{
	struct process_use use[MAX_PROCESSES];
	struct instance_ids ids[MAX_PROCESSES];
	unsigned int room = *list.count, count;
	nvmlReturn rc = device_check(d);

	if (rc)
		return rc;
	count = add_processes(d, list.of_mps, use, ids, 0);
	for (unsigned int i = 0; !d->parent && mig_is_enabled(d) && i < MAX_INSTANCES; i++)
		if (!device_check(mig_device(d, i)))
			count = add_processes(mig_device(d, i), list.of_mps, use, ids, count);
	*list.count = count;
	if (count && (!list.out || room < count))
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < count; i++) {
		struct nvml_process p = {use[i].pid, use[i].vram_bytes, ids[i].gpu, ids[i].compute};

		memcpy((char *)list.out + i * list.entry_bytes, &p, list.entry_bytes);
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetComputeRunningProcesses(nvmlDevice d, unsigned int *count, void *out)
{
	return running_processes(d, (struct list){count, out, sizeof(struct nvml_process_v1), false});
}

NVML_API nvmlReturn nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice d, unsigned int *count, void *out)
{
	return running_processes(d, (struct list){count, out, sizeof(struct nvml_process), false});
}

NVML_API nvmlReturn nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice d, unsigned int *count, void *out)
{
	return running_processes(d, (struct list){count, out, sizeof(struct nvml_process), false});
}

NVML_API nvmlReturn nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice d, unsigned int *count, void *out)
{
	nvmlReturn rc = device_check(d);

	(void)out;
	*count = 0;
	return rc;
}

NVML_API nvmlReturn nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice d, unsigned int *count, void *out)
{
	return nvmlDeviceGetGraphicsRunningProcesses_v3(d, count, out);
}

NVML_API nvmlReturn nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice d, unsigned int *count, void *out)
{
	return nvmlDeviceGetGraphicsRunningProcesses_v3(d, count, out);
}

NVML_API nvmlReturn nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice d, unsigned int *count, void *out)
{
	return running_processes(d, (struct list){count, out, sizeof(struct nvml_process), true});
}

NVML_API nvmlReturn nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice d, unsigned int *count, void *out)
{
	return running_processes(d, (struct list){count, out, sizeof(struct nvml_process_v1), true});
}

NVML_API nvmlReturn nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice d, unsigned int *count, void *out)
{
	return running_processes(d, (struct list){count, out, sizeof(struct nvml_process), true});
}

NVML_API nvmlReturn nvmlDeviceGetProcessUtilization(nvmlDevice d, struct nvml_process_sample *out,
						    unsigned int *count, unsigned long long after_us)
{
	struct sim_sample samples[SIM_MAX_SAMPLES];
	unsigned int room = *count;
	nvmlReturn rc = counters_check(d);

	if (rc)
		return rc;
	*count = read_utilization(d->shm, samples, after_us);
	if (!*count)
		return NVML_ERROR_NOT_FOUND;
	if (!out || room < *count) {
		*count = SIM_MAX_SAMPLES; /* there may be more by the second call */
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	for (unsigned int i = 0; i < *count; i++)
		out[i] = (struct nvml_process_sample){
			.pid = samples[i].pid, .time_us = samples[i].time_us, .sm = samples[i].util_pct};
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice d, struct nvml_processes_utilization *u)
{
	struct sim_sample samples[SIM_MAX_SAMPLES];
	unsigned int room = u->count;
	nvmlReturn rc = counters_check(d);

	if (rc)
		return rc;
	if (u->version != PROCESSES_UTILIZATION_V1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	u->count = read_utilization(d->shm, samples, u->after_us);
	if (!u->count)
		return NVML_ERROR_NOT_FOUND;
	if (!u->samples || room < u->count) {
		u->count = SIM_MAX_SAMPLES;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	for (unsigned int i = 0; i < u->count; i++)
		u->samples[i] = (struct nvml_process_sample_v1){
			.pid = samples[i].pid, .time_us = samples[i].time_us, .sm = samples[i].util_pct};
	return NVML_SUCCESS;
}
