/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in libnvidia-ml.so.1: enough of NVML for an unmodified pynvml. */
#ifndef NVML_INT_H
#define NVML_INT_H

#include <stdbool.h>
#include <stddef.h>

#include "sim_mig.h"

/* Everything is hidden but what is marked so. */
#define NVML_API __attribute__((visibility("default")))

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_FUNCTION_NOT_FOUND = 13,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_IN_USE = 19,
	NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
};

typedef int nvmlReturn;
typedef struct nvml_device *nvmlDevice;

/* A GPU, or a MIG device: then `parent` is the GPU it is of, and `slot` its place in that one's DIR/migN. */
struct nvml_device {
	struct sim_gpu *shm;
	struct nvml_device *parent;
	unsigned int slot;
};

extern struct nvml_library {
	unsigned int init_count;
	unsigned int count;
	char dir[256];
	struct nvml_device devices[SIM_MAX_GPUS];
	struct nvml_device instances[SIM_MAX_GPUS][MAX_INSTANCES];
} library;

/* nvml_fault.c: the driver has lost it, which is what every call about it says. */
bool gpu_is_lost(nvmlDevice gpu);

/* A handle that is valid: of a GPU, or of a MIG device that is there now. */
nvmlReturn device_check(nvmlDevice d);
/* The same, of what is not supported for MIG devices ... */
nvmlReturn whole_check(nvmlDevice d);
/* ... nor for a GPU in MIG mode: utilization and accounting. */
nvmlReturn counters_check(nvmlDevice d);

/* nvml_mig.c. The handle is valid while there is an instance in the slot. */
nvmlDevice mig_device(nvmlDevice gpu, unsigned int slot);
bool mig_is_enabled(nvmlDevice gpu);
bool mig_ids(nvmlDevice instance, unsigned int *gpu_instance, unsigned int *compute_instance);
/* Of a GPU in MIG mode; what it is split into is in `f`. */
nvmlReturn mig_check(nvmlDevice gpu, struct mig_file *f);
bool mig_in_use(nvmlDevice instance);
/* Begin a change, with the file locked. On success the caller ends it with mig_end ... */
nvmlReturn mig_begin(nvmlDevice gpu, struct mig_file *f, int *fd);
/* ... which writes it unless `rc` is an error, and lets the lock go. */
nvmlReturn mig_end(int fd, const struct mig_file *f, nvmlReturn rc);

#define MAX_PROCESSES 1024 /* of one GPU; the depth of the accounting's buffer, too */

/* What one process has on one GPU, over all its contexts. */
struct process_use {
	uint32_t pid;
	bool is_running;
	bool is_mps_client;
	uint64_t vram_bytes;
	uint64_t peak_vram_bytes;
	uint64_t created_ns;
	uint64_t ended_ns;
	uint64_t wall_start_us;
	uint64_t sample_count;
	uint64_t sample_util_pct_sum;
	uint64_t booked_util_pct_sum;
	uint64_t booked_from;
	uint64_t booked_until;
};

unsigned int read_processes(const struct sim_gpu *shm, struct process_use *out, unsigned int max,
			    bool only_running);
/* How long a GPU has executed, and until when that is known; see SimReader. */
void read_busy(const struct sim_gpu *shm, uint64_t *busy_ns, uint64_t *at_ns);
/* See nvml_read.c. */
unsigned int read_utilization(const struct sim_gpu *shm, struct sim_sample *out, uint64_t after_us);

#endif
