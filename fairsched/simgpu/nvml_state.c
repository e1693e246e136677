// SPDX-License-Identifier: Apache-2.0
/* Clocks, limits and modes, which monitors ask for: what an H100 that works answers. Nothing here changes. */
#include <stdio.h>
#include <string.h>

#include "nvml_int.h"

#define LIMIT_MW 700000u
#define BAR1_BYTES (128ull << 30)
#define TEMPERATURE_V1 0x0100000cu

enum {
	CLOCK_GRAPHICS,
	CLOCK_SM,
	CLOCK_MEMORY,
	CLOCK_VIDEO,
	CLOCKS
};

struct nvml_bar1 {
	unsigned long long total, free, used;
};

struct nvml_temperature {
	unsigned int version;
	int sensor;
	int celsius;
};

struct nvml_field {
	unsigned int id, scope;
	long long time_us, latency_us;
	int type;
	nvmlReturn rc;
	unsigned long long value;
};

nvmlReturn nvmlDeviceGetTemperature(nvmlDevice d, int sensor, unsigned int *celsius);

static nvmlReturn say(nvmlDevice d, unsigned int *out, unsigned int value)
{
	nvmlReturn rc = whole_check(d);

	if (!rc)
		*out = value;
	return rc;
}

static nvmlReturn refuse(nvmlDevice d)
{
	nvmlReturn rc = whole_check(d);

	return rc ? rc : NVML_ERROR_NOT_SUPPORTED;
}

#define SAYS(name, value)                                         \
	NVML_API nvmlReturn name(nvmlDevice d, unsigned int *out) \
	{                                                         \
		return say(d, out, value);                        \
	}

SAYS(nvmlDeviceGetComputeMode, 0)
SAYS(nvmlDeviceGetDisplayActive, 0)
SAYS(nvmlDeviceGetDisplayMode, 0)
SAYS(nvmlDeviceGetEnforcedPowerLimit, LIMIT_MW)
SAYS(nvmlDeviceGetPowerManagementLimit, LIMIT_MW)
SAYS(nvmlDeviceGetPerformanceState, 0)
SAYS(nvmlDeviceGetPersistenceMode, 1)

static nvmlReturn clock_of(nvmlDevice d, unsigned int kind, unsigned int *mhz,
			   const unsigned int clocks[CLOCKS])
{
	if (kind >= CLOCKS)
		return NVML_ERROR_INVALID_ARGUMENT;
	return say(d, mhz, clocks[kind]);
}

NVML_API nvmlReturn nvmlDeviceGetClockInfo(nvmlDevice d, unsigned int kind, unsigned int *mhz)
{
	static const unsigned int clocks[CLOCKS] = {1755, 1755, 2619, 1545};

	return clock_of(d, kind, mhz, clocks);
}

NVML_API nvmlReturn nvmlDeviceGetMaxClockInfo(nvmlDevice d, unsigned int kind, unsigned int *mhz)
{
	static const unsigned int clocks[CLOCKS] = {1980, 1980, 2619, 1545};

	return clock_of(d, kind, mhz, clocks);
}

NVML_API nvmlReturn nvmlDeviceGetEncoderUtilization(nvmlDevice d, unsigned int *pct, unsigned int *period_us)
{
	*period_us = 167000;
	return say(d, pct, 0);
}

NVML_API nvmlReturn nvmlDeviceGetDecoderUtilization(nvmlDevice d, unsigned int *pct, unsigned int *period_us)
{
	return nvmlDeviceGetEncoderUtilization(d, pct, period_us);
}

NVML_API nvmlReturn nvmlDeviceGetPcieThroughput(nvmlDevice d, unsigned int counter, unsigned int *kb_per_s)
{
	return counter > 1 ? NVML_ERROR_INVALID_ARGUMENT : say(d, kb_per_s, 0);
}

NVML_API nvmlReturn nvmlDeviceGetBAR1MemoryInfo(nvmlDevice d, struct nvml_bar1 *m)
{
	nvmlReturn rc = whole_check(d);

	if (!rc)
		*m = (struct nvml_bar1){BAR1_BYTES, BAR1_BYTES, 0};
	return rc;
}

NVML_API nvmlReturn nvmlDeviceGetTotalEccErrors(nvmlDevice d, int kind, int counter,
						unsigned long long *count)
{
	nvmlReturn rc = whole_check(d);

	(void)kind;
	(void)counter;
	if (!rc)
		*count = 0;
	return rc;
}

NVML_API nvmlReturn nvmlDeviceGetSerial(nvmlDevice d, char *text, unsigned int length)
{
	nvmlReturn rc = whole_check(d);

	if (rc)
		return rc;
	if (snprintf(text, length, "%013u", 1u + d->shm->index) >= (int)length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetTemperatureV(nvmlDevice d, struct nvml_temperature *t)
{
	unsigned int celsius = 0;
	nvmlReturn rc;

	if (t->version != TEMPERATURE_V1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	rc = nvmlDeviceGetTemperature(d, t->sensor, &celsius);
	if (!rc)
		t->celsius = (int)celsius;
	return rc;
}

NVML_API nvmlReturn nvmlDeviceGetFieldValues(nvmlDevice d, int count, struct nvml_field *fields)
{
	nvmlReturn rc = whole_check(d);

	for (int i = 0; !rc && i < count; i++)
		fields[i].rc = NVML_ERROR_NOT_SUPPORTED;
	return rc;
}

/* A card without a fan, without confidential computing, and not under Windows. */

NVML_API nvmlReturn nvmlDeviceGetFanSpeed(nvmlDevice d, unsigned int *pct)
{
	(void)pct;
	return refuse(d);
}

NVML_API nvmlReturn nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice d, void *info)
{
	(void)info;
	return refuse(d);
}

/* Its presence tells which layout the list of processes has (nvitop goes by that). */
NVML_API nvmlReturn nvmlDeviceGetRunningProcessDetailList(nvmlDevice d, void *list)
{
	(void)list;
	return refuse(d);
}

NVML_API nvmlReturn nvmlDeviceGetDriverModel(nvmlDevice d, unsigned int *current, unsigned int *pending)
{
	(void)current;
	(void)pending;
	return refuse(d);
}
