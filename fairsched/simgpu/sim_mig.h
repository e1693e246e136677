/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GPU is split into, as DIR/migN keeps it: for the engine, libcuda and NVML alike.
 *
 * The sizes and places are those of an A100. Each GPU instance may have one compute instance, which is a device of its
 * own: with its queues, its turns, its memory and its part of the speed (simshm.h, struct sim_spec: slices).
 */
#ifndef SIM_MIG_H
#define SIM_MIG_H

#include <stdbool.h>
#include <stddef.h>

#include "simos.h"
#include "simshm.h"

#define MAX_INSTANCES SIM_MAX_INSTANCES
#define MEMORY_SLICES 8
#define PROFILES 5

struct mig_profile {
	unsigned int id, slices, memory_slices, most;
	int starts[MAX_INSTANCES]; /* memory slices at which it may begin; -1 = no more */
};

extern const struct mig_profile mig_profiles[PROFILES];

struct mig_instance {
	uint32_t id; /* of the GPU instance: 1, 2, ...; 0 = empty slot */
	uint32_t profile;
	uint32_t start;
	uint32_t part;   /* compute instance: 1 + its profile; 0 = none */
	uint32_t serial; /* of the compute instance, 1, 2, ... of this GPU: makes its UUID */
};

struct mig_file {
	uint32_t is_enabled;
	uint32_t last_id;
	uint32_t last_serial;
	struct mig_instance instances[MAX_INSTANCES];
};

/* Lock DIR/migN and read it, zeros where nobody has written it; -1 when it is not there and need not be made. */
int mig_open(const char *dir, uint32_t gpu, struct mig_file *f, bool is_writing);

/* The same for who only reads. */
void mig_load(const char *dir, uint32_t gpu, struct mig_file *f);

/* Write it and let the lock go; false: it could not be written. */
bool mig_save(int fd, const struct mig_file *f);

/* Where one more of a profile can begin; -1 = nowhere. */
int mig_place(const struct mig_file *f, int profile);

/* Add a GPU instance; its slot, or -1. */
int mig_add(struct mig_file *f, int profile);

/* Give one a compute instance, and say in `out` what that is as a device of a GPU that is `whole`. */
void mig_fill(struct mig_file *f, int slot, int profile, const struct sim_spec *whole, struct sim_spec *out);

#endif
