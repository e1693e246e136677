// SPDX-License-Identifier: Apache-2.0
/*
 * A driver in user space: the programs of pid_view are put on these functions with uprobes instead of kprobes, so
 * that a test knows every byte the driver was shown and left. Memory is read and written the way the kernel does
 * for a caller: a bad pointer is an error and no signal.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_PROCS 1000
#define MAX_PARAMS 65536

struct setup {
	uint32_t translates[3]; /* list, info, samples */
	uint32_t procs;
	uint32_t pid[MAX_PROCS];   /* in the initial namespace */
	uint32_t nspid[MAX_PROCS]; /* in the caller's; 0 = not visible */
	uint64_t memory[MAX_PROCS];
	uint32_t status; /* of the next call */
	uint32_t error;  /* errno of the next call, before anything is done */
	uint32_t count;  /* of a list: what is said instead of the true count; 0 = the true count */
	uint32_t
		meddle; /* a pid that somebody puts into the first item of a question meanwhile; 0 = nobody does */
};

struct setup setup;
uint8_t seen[MAX_PARAMS], left[MAX_PARAMS];
uint32_t seen_size, left_size;

static int copy(void *to, const void *from, size_t size, int is_write)
{
	struct iovec local = {is_write ? (void *)from : to, size},
		     remote = {is_write ? to : (void *)from, size};
	ssize_t done = is_write ? process_vm_writev(getpid(), &local, 1, &remote, 1, 0)
				: process_vm_readv(getpid(), &local, 1, &remote, 1, 0);

	return done == (ssize_t)size ? 0 : -14;
}

__attribute__((noinline)) uint32_t os_find_ns_pid(void *info, uint32_t *nspid)
{
	uint32_t i = (uint32_t)(uintptr_t)info;

	__asm__ volatile("" ::: "memory");
	*nspid = setup.nspid[i];
	return *nspid ? 0 : 0x57;
}

static void put(uint8_t *where, uint32_t value)
{
	memcpy(where, &value, 4);
}

static uint32_t get(const uint8_t *where)
{
	uint32_t value;

	memcpy(&value, where, 4);
	return value;
}

static void list(uint8_t *p)
{
	uint32_t n = 0, nspid;

	for (uint32_t i = 0; i < setup.procs && n < 950; i++) {
		if (!setup.translates[0])
			put(p + 12 + 4 * n++, setup.pid[i]);
		else if (!os_find_ns_pid((void *)(uintptr_t)i, &nspid))
			put(p + 12 + 4 * n++, nspid);
	}
	put(p + 8, setup.count ? setup.count : n);
}

static uint32_t info(uint8_t *p)
{
	uint32_t count = get(p), nspid;

	if (!count || count > 200)
		return 0x1f;
	for (uint32_t k = 0; k < count; k++) {
		uint8_t *item = p + 8 + 72 * k;
		uint64_t memory = 0;

		for (uint32_t i = 0; i < setup.procs; i++) {
			nspid = setup.pid[i];
			if (setup.translates[1] && os_find_ns_pid((void *)(uintptr_t)i, &nspid))
				continue;
			if (nspid == get(item))
				memory = setup.memory[i];
		}
		put(item + 8, 0);
		memcpy(item + 16, &memory, 8);
		if (!k && setup.meddle)
			put(item, setup.meddle);
	}
	return 0;
}

static uint32_t samples(uint8_t *p, uint32_t size)
{
	uint32_t engines = size == 34000 ? 4 : 6, record = size == 55888 ? 128 : 116, i = 0, nspid;

	if (get(p + 4) != size - 16)
		return 0x1f;
	put(p + 8, 72);
	for (uint32_t s = 0; s < 60; s++) /* the others are empty */
		for (uint32_t e = 0; e < engines; e++, i++) {
			uint8_t *r = p + 16 + s * (8 + engines * record) + 8 + e * record;
			uint32_t who = i % (setup.procs + 1);

			put(r, 100 + i);
			put(r + 8, who == setup.procs ? 0xffffffffu : setup.pid[who]);
			put(r + 12, 0xffffffffu);
			memcpy(r + 16, "name", 5);
			if (who < setup.procs && setup.translates[2] &&
			    !os_find_ns_pid((void *)(uintptr_t)who, &nspid))
				put(r + 8, nspid);
		}
	return 0;
}

static uint32_t control(uint32_t cmd, uint64_t params, uint32_t size)
{
	static uint8_t p[MAX_PARAMS];
	uint32_t status = setup.status;

	if (size > MAX_PARAMS || copy(p, (void *)params, size, 0))
		return 0x1e;
	memcpy(seen, p, size);
	seen_size = size;
	if (!status && cmd == 0x2080018d && size == 3812)
		list(p);
	else if (!status && cmd == 0x2080018e && size == 14408)
		status = info(p);
	else if (!status && cmd == 0x20802096 && (size == 55888 || size == 50704 || size == 34000))
		status = samples(p, size);
	if (copy((void *)params, p, size, 1))
		return 0x1e;
	memcpy(left, p, size);
	left_size = size;
	return status;
}

/* As small as a call can be: a pair of probes is on it. */
__attribute__((noinline)) long nvidia_unlocked_ioctl(void *file, unsigned int cmd, unsigned long arg)
{
	uint32_t nr = cmd & 0xff, size = cmd >> 16 & 0x3fff, xfer[4], nvos54[8];
	uint64_t params;

	(void)file;
	seen_size = left_size = 0;
	if (setup.error)
		return -(long)setup.error;
	if (nr == 211) {
		if (size != 16 || copy(xfer, (void *)arg, 16, 0))
			return -14;
		nr = xfer[0];
		size = xfer[1];
		memcpy(&arg, xfer + 2, 8);
	}
	if (nr != 0x2a)
		return nr == 0x2b ? 0 : -22;
	if (size != 32 || copy(nvos54, (void *)arg, 32, 0))
		return -14;
	memcpy(&params, nvos54 + 4, 8);
	nvos54[7] = control(nvos54[2], params, nvos54[6]);
	return copy((void *)arg, nvos54, 32, 1);
}
