// SPDX-License-Identifier: Apache-2.0
/*
 * GPM, the performance monitoring of Hopper and later: metrics of the time between two samples, as nvml.h has them.
 *
 * Known are how long the graphics engine, the SMs and the tensor cores worked. The first two are the engine's own
 * account: a simulated kernel fills the GPU. What a kernel computes is not simulated, so the third is half of that, a
 * plausible figure. In the environment of who asks, FAIRSCHED_SIM_NVML_GPM=off is a GPU before Hopper, and =refused one
 * that has GPM and refuses its samples, as that of a virtual machine does.
 */
#include <stdlib.h>
#include <string.h>

#include "nvml_int.h"

#define GPM_VERSION 1
#define TENSOR_PART .5

enum gpm_metric_id {
	GPM_GRAPHICS_UTIL = 1,
	GPM_SM_UTIL = 2,
	GPM_ANY_TENSOR_UTIL = 5,
};

struct nvml_gpm_sample {
	const struct sim_gpu *shm;
	uint64_t busy_ns, at_ns;
};

struct nvml_gpm_support {
	unsigned int version, is_supported;
};

struct nvml_gpm_metric {
	unsigned int id;
	nvmlReturn rc;
	double value;
	const char *short_name, *long_name, *unit;
};

/* Nobody reads beyond `count`, so how many metrics a version of nvml.h knows does not matter. */
struct nvml_gpm_metrics {
	unsigned int version, count;
	struct nvml_gpm_sample *before, *after;
	struct nvml_gpm_metric metrics[];
};

_Static_assert(sizeof(struct nvml_gpm_metric) == 40, "as nvml.h has it");
_Static_assert(offsetof(struct nvml_gpm_metrics, metrics) == 24, "as nvml.h has it");

static bool wished(const char *what)
{
	const char *wish = getenv("FAIRSCHED_SIM_NVML_GPM");

	return wish && !strcmp(wish, what);
}

NVML_API nvmlReturn nvmlGpmQueryDeviceSupport(nvmlDevice d, struct nvml_gpm_support *support)
{
	nvmlReturn rc = device_check(d);

	if (rc)
		return rc;
	if (support->version != GPM_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->is_supported = !wished("off");
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlGpmSampleAlloc(struct nvml_gpm_sample **sample)
{
	if (!library.init_count)
		return NVML_ERROR_UNINITIALIZED;
	*sample = calloc(1, sizeof(**sample));
	return *sample ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_RESOURCES;
}

NVML_API nvmlReturn nvmlGpmSampleFree(struct nvml_gpm_sample *sample)
{
	free(sample);
	return sample ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn nvmlGpmSampleGet(nvmlDevice d, struct nvml_gpm_sample *sample)
{
	nvmlReturn rc = counters_check(d);

	if (rc)
		return rc;
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (wished("off") || wished("refused"))
		return NVML_ERROR_NOT_SUPPORTED;
	sample->shm = d->shm;
	read_busy(d->shm, &sample->busy_ns, &sample->at_ns);
	return NVML_SUCCESS;
}

static void fill(struct nvml_gpm_metric *m, double busy_ratio)
{
	m->rc = NVML_SUCCESS;
	m->unit = "%";
	switch (m->id) {
	case GPM_GRAPHICS_UTIL:
		m->short_name = m->long_name = "Graphics Util";
		m->value = 100 * busy_ratio;
		return;
	case GPM_SM_UTIL:
		m->short_name = m->long_name = "SM Util";
		m->value = 100 * busy_ratio;
		return;
	case GPM_ANY_TENSOR_UTIL:
		m->short_name = m->long_name = "Any Tensor Util";
		m->value = 100 * busy_ratio * TENSOR_PART;
		return;
	default:
		m->rc = NVML_ERROR_NOT_SUPPORTED;
	}
}

NVML_API nvmlReturn nvmlGpmMetricsGet(struct nvml_gpm_metrics *m)
{
	const struct nvml_gpm_sample *before = m->before, *after = m->after;

	if (m->version != GPM_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (!before || !after || !before->shm || before->shm != after->shm || after->at_ns <= before->at_ns)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < m->count; i++)
		fill(&m->metrics[i],
		     (double)(after->busy_ns - before->busy_ns) / (double)(after->at_ns - before->at_ns));
	return NVML_SUCCESS;
}
