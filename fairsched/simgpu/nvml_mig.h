/* SPDX-License-Identifier: Apache-2.0 */
/* What a GPU is split into, as DIR/migN keeps it. */
#ifndef NVML_MIG_H
#define NVML_MIG_H

#include "nvml_int.h"

#define MAX_INSTANCES 7

struct mig_instance {
	uint32_t id; /* 1, 2, ...; 0 = empty slot */
	uint32_t profile;
	uint32_t start;
	uint32_t part; /* compute instance: 1 + its profile; 0 = none */
};

struct mig_file {
	uint32_t is_enabled;
	uint32_t last_id;
	struct mig_instance instances[MAX_INSTANCES];
};

/* All of it; nothing where nobody has changed it yet. */
void mig_read(nvmlDevice d, struct mig_file *f);

/* Begin a change, with the file locked. On success the caller ends it with mig_end. */
nvmlReturn mig_begin(nvmlDevice d, struct mig_file *f, int *fd);

/* Write it unless `rc` is an error, and let the lock go. */
nvmlReturn mig_end(int fd, const struct mig_file *f, nvmlReturn rc);

#endif
