// SPDX-License-Identifier: Apache-2.0
/*
 * GPUs that are lost, and the driver's reports of errors (Xid). Somebody else decides on them: a GPU is lost while there
 * is a file DIR/lostN; each line "N XID" of DIR/xids is one report, in the order in which they stand there. In the
 * environment of who asks, FAIRSCHED_SIM_NVML_XID=off is a driver that hands on none.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvml_int.h"

#define XID_CRITICAL 8ull
#define NO_INSTANCE 0xffffffffu
#define LOOK_NS 20000000 /* between two looks at the file */

struct nvml_event_data {
	nvmlDevice device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

struct nvml_event_set {
	uint32_t gpus; /* a bit for each that is registered */
	long seen;     /* how much of the file was read */
};

bool gpu_is_lost(nvmlDevice gpu)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/lost%u", library.dir, (unsigned int)(gpu - library.devices));
	return access(path, F_OK) == 0;
}

static FILE *open_reports(void)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/xids", library.dir);
	return fopen(path, "re");
}

NVML_API nvmlReturn nvmlEventSetCreate(struct nvml_event_set **out)
{
	FILE *f;

	if (!library.init_count)
		return NVML_ERROR_UNINITIALIZED;
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return NVML_ERROR_UNKNOWN;
	f = open_reports();
	if (f) { /* what was reported before is nobody's news */
		fseek(f, 0, SEEK_END);
		(*out)->seen = ftell(f);
		fclose(f);
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlEventSetFree(struct nvml_event_set *set)
{
	free(set);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetSupportedEventTypes(nvmlDevice d, unsigned long long *types)
{
	nvmlReturn rc = whole_check(d);

	if (!rc)
		*types = XID_CRITICAL;
	return rc;
}

static bool is_silent(void)
{
	const char *wish = getenv("FAIRSCHED_SIM_NVML_XID");

	return wish && !strcmp(wish, "off");
}

NVML_API nvmlReturn nvmlDeviceRegisterEvents(nvmlDevice d, unsigned long long types,
					     struct nvml_event_set *set)
{
	nvmlReturn rc = whole_check(d);

	if (rc)
		return rc;
	if (types & ~XID_CRITICAL || is_silent())
		return NVML_ERROR_NOT_SUPPORTED;
	set->gpus |= 1u << (d - library.devices);
	return NVML_SUCCESS;
}

/* The next report about a GPU that is registered. */
static bool next_report(struct nvml_event_set *set, struct nvml_event_data *data)
{
	unsigned int gpu, xid;
	bool is_found = false;
	char line[64];
	FILE *f = open_reports();

	if (!f)
		return false;
	fseek(f, set->seen, SEEK_SET);
	while (!is_found && fgets(line, sizeof(line), f) && strchr(line, '\n')) {
		set->seen = ftell(f);
		if (sscanf(line, "%u %u", &gpu, &xid) != 2 || gpu >= library.count || !(set->gpus >> gpu & 1))
			continue;
		*data = (struct nvml_event_data){&library.devices[gpu], XID_CRITICAL, xid, NO_INSTANCE,
						 NO_INSTANCE};
		is_found = true;
	}
	fclose(f);
	return is_found;
}

NVML_API nvmlReturn nvmlEventSetWait_v2(struct nvml_event_set *set, struct nvml_event_data *data,
					unsigned int wait_ms)
{
	struct timespec pause = {0, LOOK_NS};

	for (uint64_t waited_ns = 0;; waited_ns += LOOK_NS) {
		if (!library.init_count)
			return NVML_ERROR_UNINITIALIZED;
		if (next_report(set, data))
			return NVML_SUCCESS;
		if (waited_ns >= wait_ms * 1000000ull)
			return NVML_ERROR_TIMEOUT;
		nanosleep(&pause, NULL);
	}
}
