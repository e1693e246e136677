// SPDX-License-Identifier: Apache-2.0
/* DIR/migN: one file for each GPU, locked while it is read or changed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "nvml_mig.h"

/* Read DIR/migN and lock it; -1 when it is not there and need not be made. */
static int mig_open(nvmlDevice d, struct mig_file *f, bool is_writing)
{
	const char *dir = getenv("FAIRSCHED_SIM_DIR");
	char path[512];
	int fd;

	memset(f, 0, sizeof(*f));
	snprintf(path, sizeof(path), "%s/mig%u", dir ? dir : "", d->shm->index);
	fd = open(path, (is_writing ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC, 0644);
	if (fd < 0)
		return -1;
	flock(fd, is_writing ? LOCK_EX : LOCK_SH);
	if (pread(fd, f, sizeof(*f), 0) != (ssize_t)sizeof(*f))
		memset(f, 0, sizeof(*f));
	return fd;
}

void mig_read(nvmlDevice d, struct mig_file *f)
{
	int fd = mig_open(d, f, false);

	if (fd >= 0)
		close(fd);
}

nvmlReturn mig_begin(nvmlDevice d, struct mig_file *f, int *fd)
{
	struct process_use use[1];
	nvmlReturn rc = device_check(d);

	if (rc)
		return rc;
	if (geteuid())
		return NVML_ERROR_NO_PERMISSION;
	if (read_processes(d->shm, use, 1, true))
		return NVML_ERROR_IN_USE;
	*fd = mig_open(d, f, true);
	return *fd < 0 ? NVML_ERROR_UNKNOWN : NVML_SUCCESS;
}

nvmlReturn mig_end(int fd, const struct mig_file *f, nvmlReturn rc)
{
	if (!rc && pwrite(fd, f, sizeof(*f), 0) != (ssize_t)sizeof(*f))
		rc = NVML_ERROR_UNKNOWN;
	close(fd);
	return rc;
}
