// SPDX-License-Identifier: Apache-2.0
/*
 * NVML's accounting mode, as the driver has it: once a second it adds the samples that name a process to its sum. A
 * process that came before the mode was switched on is not in there, and of one that ended the samples since the last
 * second are lost. Of two processes with one pid the later one is told. Sums are in hundredths of a percent; the mean is
 * over all samples of the GPU since the process began, in whole percents.
 */
#include <stdlib.h>
#include <string.h>

#include "nvml_int.h"

struct nvml_accounting {
	unsigned int gpu_util_pct, memory_util_pct;
	unsigned long long max_bytes, time_ms, start_us;
	unsigned int is_running;
	unsigned int reserved[5];
};

struct nvml_accounting_v2 {
	unsigned int pid, is_running, gpu_util_pct, memory_util_pct;
	unsigned long long max_bytes;
	unsigned int sample_count;
	unsigned long long gpu_util_sum, memory_util_sum, time_ms, start_us;
};

NVML_API nvmlReturn nvmlDeviceGetAccountingMode(nvmlDevice d, unsigned int *mode)
{
	nvmlReturn rc = counters_check(d);

	if (!rc)
		*mode = atomic_load(&d->shm->accounting_mode);
	return rc;
}

NVML_API nvmlReturn nvmlDeviceSetAccountingMode(nvmlDevice d, unsigned int mode)
{
	nvmlReturn rc = counters_check(d);

	if (rc)
		return rc;
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	if (mode && !atomic_load(&d->shm->accounting_mode))
		atomic_store(&d->shm->accounting_on_ns, sim_now_ns());
	atomic_store(&d->shm->accounting_mode, mode);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceClearAccountingPids(nvmlDevice d)
{
	nvmlReturn rc = counters_check(d);

	if (rc)
		return rc;
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	atomic_store(&d->shm->accounting_cleared_ns, sim_now_ns());
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetAccountingBufferSize(nvmlDevice d, unsigned int *size)
{
	*size = MAX_PROCESSES;
	return whole_check(d);
}

/* Those in the account, in `use`. */
static nvmlReturn accounted(nvmlDevice d, struct process_use *use, unsigned int *count)
{
	unsigned int all, kept = 0;
	nvmlReturn rc = counters_check(d);

	if (rc)
		return rc;
	if (!atomic_load(&d->shm->accounting_mode))
		return NVML_ERROR_NOT_SUPPORTED;
	all = read_processes(d->shm, use, MAX_PROCESSES, false);
	for (unsigned int i = 0; i < all; i++) {
		if (use[i].created_ns < atomic_load(&d->shm->accounting_on_ns))
			continue;
		if (use[i].is_running || use[i].ended_ns >= atomic_load(&d->shm->accounting_cleared_ns))
			use[kept++] = use[i];
	}
	*count = kept;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetAccountingPids(nvmlDevice d, unsigned int *count, unsigned int *pids)
{
	struct process_use use[MAX_PROCESSES];
	unsigned int room = *count;
	nvmlReturn rc = accounted(d, use, count);

	if (rc)
		return rc;
	if (*count > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < *count; i++)
		pids[i] = use[i].pid;
	return NVML_SUCCESS;
}

static nvmlReturn find_accounting(nvmlDevice d, unsigned int pid, struct process_use *out)
{
	struct process_use use[MAX_PROCESSES];
	unsigned int count;
	nvmlReturn rc = accounted(d, use, &count);

	if (rc)
		return rc;
	for (unsigned int i = 0; i < count; i++)
		if (use[i].pid == pid) {
			*out = use[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn accounting_of(nvmlDevice d, struct nvml_accounting_v2 *a)
{
	struct process_use p;
	nvmlReturn rc = find_accounting(d, a->pid, &p);

	if (rc)
		return rc;
	a->is_running = p.is_running;
	a->sample_count =
		(unsigned int)((p.is_running ? d->shm->booked_samples : p.booked_until) - p.booked_from);
	a->gpu_util_sum = p.booked_util_pct_sum * 100;
	a->memory_util_sum = a->gpu_util_sum / 2;
	a->gpu_util_pct = a->sample_count ? (unsigned int)(a->gpu_util_sum / a->sample_count) / 100 : 0;
	a->memory_util_pct = a->gpu_util_pct / 2;
	a->max_bytes = p.peak_vram_bytes;
	a->time_ms = p.is_running ? 0 : (p.ended_ns - p.created_ns) / 1000000;
	a->start_us = p.wall_start_us;
	return NVML_SUCCESS;
}

/* Older drivers lack it: FAIRSCHED_SIM_NVML_ACCOUNTING=v1 in the environment of who asks. */
NVML_API nvmlReturn nvmlDeviceGetAccountingStats_v2(nvmlDevice d, struct nvml_accounting_v2 *a)
{
	const char *version = getenv("FAIRSCHED_SIM_NVML_ACCOUNTING");

	return version && !strcmp(version, "v1") ? NVML_ERROR_FUNCTION_NOT_FOUND : accounting_of(d, a);
}

NVML_API nvmlReturn nvmlDeviceGetAccountingStats(nvmlDevice d, unsigned int pid, struct nvml_accounting *a)
{
	struct nvml_accounting_v2 v2 = {.pid = pid};
	nvmlReturn rc = accounting_of(d, &v2);

	if (rc)
		return rc;
	memset(a, 0, sizeof(*a));
	a->gpu_util_pct = v2.gpu_util_pct;
	a->memory_util_pct = v2.memory_util_pct;
	a->max_bytes = v2.max_bytes;
	a->time_ms = v2.time_ms;
	a->start_us = v2.start_us;
	a->is_running = v2.is_running;
	return NVML_SUCCESS;
}
