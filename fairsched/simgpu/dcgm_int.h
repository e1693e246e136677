/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in libdcgm.so.4: what a client of NVIDIA's DCGM asks of it to watch the load of GPUs and processes.
 *
 * Layouts, version numbers and return codes are those of dcgm_structs.h, which are the same in 3.x and 4.x. A
 * connection to a host engine is a real socket (fairsched/simgpu/hostengine.py), so that it can die, hang and come
 * back; what is measured comes from the simulated GPUs of FAIRSCHED_SIM_DIR in any case.
 */
#ifndef DCGM_INT_H
#define DCGM_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim_mig.h"
#include "simshm.h"

/* Everything is hidden but what is marked so. */
#define DCGM_API __attribute__((visibility("default")))

#define VERSION_OF(bytes, number) ((unsigned int)(bytes) | (number) << 24)

enum {
	DCGM_ST_OK = 0,
	DCGM_ST_BADPARAM = -1,
	DCGM_ST_GENERIC_ERROR = -3,
	DCGM_ST_NOT_CONFIGURED = -5,
	DCGM_ST_NOT_SUPPORTED = -6,
	DCGM_ST_INIT_ERROR = -7,
	DCGM_ST_UNINITIALIZED = -10,
	DCGM_ST_TIMEOUT = -11,
	DCGM_ST_VER_MISMATCH = -12,
	DCGM_ST_UNKNOWN_FIELD = -13,
	DCGM_ST_NO_DATA = -14,
	DCGM_ST_NOT_WATCHED = -16,
	DCGM_ST_GPU_IS_LOST = -18,
	DCGM_ST_CONNECTION_NOT_VALID = -21,
	DCGM_ST_MAX_LIMIT = -24,
	DCGM_ST_DUPLICATE_KEY = -26,
	DCGM_ST_REQUIRES_ROOT = -29,
	DCGM_ST_PROFILING_NOT_SUPPORTED = -36,
};

enum {
	DCGM_FE_GPU = 1,
	DCGM_FE_GPU_I = 4,
	DCGM_FE_GPU_CI = 5,
	DCGM_GROUP_DEFAULT = 0,
	DCGM_GROUP_EMPTY = 1,
	DCGM_GROUP_ALL_GPUS = 0x7fffffff,
	DCGM_GROUP_ALL_INSTANCES = 0x7ffffffd,
	DCGM_EMBEDDED_HANDLE = 0x7fffffff,
	DCGM_INT32_BLANK = 0x7ffffff0,
	DCGM_FV_FLAG_LIVE_DATA = 1,
};

#define DCGM_INT64_BLANK 0x7ffffffffffffff0ll
#define DCGM_FP64_BLANK 140737488355328.0
#define DCGM_MAX_NUM_DEVICES 32
#define DCGM_MAX_STR_LENGTH 256
#define DCGM_MAX_BLOB_LENGTH 4096

enum {
	FIELD_NAME = 50,
	FIELD_UUID = 54,
	FIELD_GPU_UTIL = 203,
	FIELD_GR_ENGINE_ACTIVE = 1001,
	FIELD_SM_ACTIVE = 1002,
	FIRST_PROFILING_FIELD = 1001,
	LAST_FIELD = 1100, /* far beyond those that are modelled; real ones in between are "not supported" */
};

typedef int dcgmReturn;
typedef uintptr_t dcgmHandle;

union field_data {
	int64_t i64;
	double dbl;
	char str[DCGM_MAX_STR_LENGTH];
	char blob[DCGM_MAX_BLOB_LENGTH];
};

struct field_value_v1 {
	unsigned int version;
	unsigned short field, type;
	int status;
	int64_t time_us;
	union field_data value;
};

struct field_value_v2 {
	unsigned int version;
	unsigned int entity_group, entity;
	unsigned short field, type;
	int status;
	unsigned int unused;
	int64_t time_us;
	union field_data value;
};

struct entity_pair {
	unsigned int entity_group, entity;
};

#define MAX_GROUPS 64
#define MAX_WATCHED 32
#define MAX_NAME 256

struct group {
	bool is_used;
	char name[MAX_NAME];
	uint32_t gpus; /* bit N: GPU N */
};

struct field_group {
	bool is_used;
	char name[MAX_NAME];
	unsigned int count;
	unsigned short fields[MAX_WATCHED];
};

struct watch {
	unsigned short field;
	uint32_t gpus;
	bool has_instances; /* all GPU instances, as of MIG; no group of a client's own has one */
	uint64_t period_ns;
};

/* What was measured of one GPU when it was last looked at. */
struct reading {
	uint64_t busy_ns, at_ns; /* of the GPU until then */
	int64_t time_us;         /* CLOCK_REALTIME; 0 = not looked at twice yet */
	double active_ratio;     /* between the last two looks */
	unsigned int util_pct;
};

struct connection {
	bool is_open;
	bool is_embedded;
	int socket;
	bool has_pid_watch;
	struct group groups[MAX_GROUPS];
	struct field_group field_groups[MAX_GROUPS];
	struct watch watches[MAX_WATCHED];
	unsigned int watch_count;
	struct reading readings[SIM_MAX_DEVICES];
	pthread_t sampler;
	bool has_sampler, is_ending;
	pthread_cond_t changed;
};

extern struct dcgm_library {
	pthread_mutex_t lock; /* over everything here */
	bool is_initialised;
	unsigned int gpu_count;
	struct sim_gpu
		*gpus[SIM_MAX_DEVICES]; /* whole ones, and places of instances, as engines are numbered */
} dcgm;

/* The connection of a handle, with the lock held, if its host engine answers; else NULL, unlocked, and why. */
struct connection *connection_use(dcgmHandle handle, dcgmReturn *rc);
/* Let go of it; returns `rc`. */
dcgmReturn connection_done(dcgmReturn rc);

uint32_t all_gpus(void);
/* Which GPUs a group has; false: there is no such group. */
bool group_gpus(const struct connection *c, uintptr_t group, uint32_t *gpus);

/* dcgm_mig.c. Whether a GPU instance is there; `slot` of its GPU. */
bool instance_is_there(unsigned int gpu, unsigned int slot);
/* The number of an entity's device, or -1: there is no such entity. */
int device_of(unsigned int entity_group, unsigned int entity);

/* dcgm_watch.c: with the lock held. */
void sampler_stop(struct connection *c);
struct field_group *own_field_group(struct connection *c, uintptr_t group);
struct watch *find_watch(struct connection *c, unsigned short field);

#endif
