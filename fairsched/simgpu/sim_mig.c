// SPDX-License-Identifier: Apache-2.0
/* DIR/migN: one file for each GPU, locked while it is read or changed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

#include "sim_mig.h"

const struct mig_profile mig_profiles[PROFILES] = {
	{19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}},
	{14, 2, 2, 3, {0, 2, 4, -1}},
	{9, 3, 4, 2, {0, 4, -1}},
	{5, 4, 4, 1, {0, -1}},
	{0, 7, 8, 1, {0, -1}},
};

int mig_open(const char *dir, uint32_t gpu, struct mig_file *f, bool is_writing)
{
	char path[512];
	int fd;

	memset(f, 0, sizeof(*f));
	snprintf(path, sizeof(path), "%s/mig%u", dir ? dir : "", gpu);
	fd = open(path, (is_writing ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC, 0644);
	if (fd < 0)
		return -1;
	flock(fd, is_writing ? LOCK_EX : LOCK_SH);
	if (pread(fd, f, sizeof(*f), 0) != (ssize_t)sizeof(*f))
		memset(f, 0, sizeof(*f));
	return fd;
}

void mig_load(const char *dir, uint32_t gpu, struct mig_file *f)
{
	int fd = mig_open(dir, gpu, f, false);

	if (fd >= 0)
		close(fd);
}

bool mig_save(int fd, const struct mig_file *f)
{
	bool is_written = pwrite(fd, f, sizeof(*f), 0) == (ssize_t)sizeof(*f);

	close(fd);
	return is_written;
}

/* The memory slices in use, as bits; and the compute slices. */
static unsigned int taken(const struct mig_file *f, unsigned int *slices)
{
	unsigned int bits = 0;

	*slices = 0;
	for (int i = 0; i < MAX_INSTANCES; i++) {
		const struct mig_instance *one = &f->instances[i];

		if (!one->id)
			continue;
		bits |= ((1u << mig_profiles[one->profile].memory_slices) - 1) << one->start;
		*slices += mig_profiles[one->profile].slices;
	}
	return bits;
}

/* The last place first: it leaves most room for large ones. */
int mig_place(const struct mig_file *f, int profile)
{
	const struct mig_profile *p = &mig_profiles[profile];
	unsigned int slices, bits = taken(f, &slices);

	if (slices + p->slices > MAX_INSTANCES)
		return -1;
	for (int i = (int)p->most - 1; i >= 0; i--)
		if (!(bits & ((1u << p->memory_slices) - 1) << p->starts[i]))
			return p->starts[i];
	return -1;
}

int mig_add(struct mig_file *f, int profile)
{
	int start = mig_place(f, profile);

	for (int i = 0; start >= 0 && i < MAX_INSTANCES; i++)
		if (!f->instances[i].id) {
			f->instances[i] = (struct mig_instance){
				.id = ++f->last_id, .profile = (uint32_t)profile, .start = (uint32_t)start};
			return i;
		}
	return -1;
}

void mig_fill(struct mig_file *f, int slot, int profile, const struct sim_spec *whole, struct sim_spec *out)
{
	struct mig_instance *one = &f->instances[slot];
	const struct mig_profile *p = &mig_profiles[profile];
	uint64_t memory = whole->vram_bytes * mig_profiles[one->profile].memory_slices / MEMORY_SLICES;
	const uint8_t *b = out->uuid_bytes;

	one->part = 1 + (uint32_t)profile;
	one->serial = ++f->last_serial;
	*out = *whole;
	out->born_ns = sim_now_ns();
	out->slices = p->slices;
	out->vram_bytes = memory;
	out->sm_count = whole->sm_count * p->slices / MAX_INSTANCES;
	snprintf(out->name, sizeof(out->name), "%.40s MIG %ug.%llugb", whole->name, p->slices,
		 (unsigned long long)((memory + (1ull << 30) - 1) >> 30));
	out->uuid_bytes[0] ^= (uint8_t)one->serial;
	out->uuid_bytes[1] ^= (uint8_t)(one->serial >> 8);
	out->uuid_bytes[15] ^= 0xa5; /* no other GPU's with this many instances before it */
	snprintf(out->uuid, sizeof(out->uuid),
		 "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
		 b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}
