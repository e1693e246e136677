// SPDX-License-Identifier: Apache-2.0
/*
 * The bytes in device memory. An allocation is a mapping of this process at the device's own address, which takes
 * memory for the pages that are written only. Copies and memsets move their bytes when they are called; when they
 * are done is the engine's affair. That cannot be told apart by a program that waits as it must, because kernels
 * here write nothing. What names no allocation of this process (or no host memory: NULL) takes its time and moves
 * nothing, so a load need not have a buffer.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "cuda_api.h"

#define PAGE 4096ull
#define FIRST_ADDRESS 0x302000000ull

static _Atomic uint64_t next_address = FIRST_ADDRESS;

static uint64_t whole_pages(uint64_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* The first address from `next_address` on where nothing of the process lies yet. */
void contents_map(struct cu_memory *m)
{
	uint64_t size = whole_pages(m->bytes);

	for (;;) {
		void *want, *got;

		m->address = atomic_fetch_add(&next_address, size);
		want = (void *)(uintptr_t)m->address;
		got = mmap(want, size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
		m->has_contents = got == want;
		if (m->has_contents)
			return;
		if (got != MAP_FAILED) /* a kernel that takes the flag for a hint */
			munmap(got, size);
		else if (errno != EEXIST)
			return; /* as under a limit on address space: a number without contents */
	}
}

void contents_unmap(struct cu_memory *m)
{
	if (m->has_contents)
		munmap((void *)(uintptr_t)m->address, whole_pages(m->bytes));
}

static bool is_within(const struct cu_memory *m, uint64_t address)
{
	return address >= m->address && address - m->address < m->bytes;
}

/* A copy of the entry of the allocation that `address` is in. */
bool memory_find(uint64_t address, struct cu_memory *out, CUcontext *owner)
{
	bool found = false;

	pthread_mutex_lock(&client.lock);
	for (CUcontext c = client.live; c && !found; c = c->next_live) {
		pthread_mutex_lock(&c->lock);
		for (struct cu_memory *m = c->memory; m && !found; m = m->next) {
			if (!is_within(m, address))
				continue;
			*out = *m;
			if (owner)
				*owner = c;
			found = true;
		}
		pthread_mutex_unlock(&c->lock);
	}
	pthread_mutex_unlock(&client.lock);
	return found;
}

enum end_kind {
	END_NOTHING, /* no bytes lie there */
	END_OTHER,   /* host memory, if anything */
	END_DEVICE,
	END_OUTSIDE /* begins in an allocation and goes beyond it */
};

static enum end_kind end_of(uint64_t address, uint64_t bytes)
{
	struct cu_memory m;

	if (!memory_find(address, &m, NULL))
		return address ? END_OTHER : END_NOTHING;
	if (bytes > m.bytes - (address - m.address))
		return END_OUTSIDE;
	if (m.kind == MEMORY_HOST || m.kind == MEMORY_REGISTERED)
		return END_OTHER;
	return m.has_contents ? END_DEVICE : END_NOTHING;
}

static bool is_host_address(uint64_t address)
{
	return address >= SIM_DEVICE_LIMIT;
}

CUresult contents_check(const struct copy_shape *s, bool *moves)
{
	uint64_t dst_bytes = (s->planes - 1) * s->dst_plane + (s->rows - 1) * s->dst_pitch + s->width;
	uint64_t src_bytes = (s->planes - 1) * s->src_plane + (s->rows - 1) * s->src_pitch + s->width;
	enum end_kind dst = end_of(s->dst, dst_bytes), src = end_of(s->src, src_bytes);

	*moves = dst != END_NOTHING && src != END_NOTHING;
	if (*moves && (dst == END_OUTSIDE || src == END_OUTSIDE))
		return CUDA_ERROR_INVALID_VALUE;
	if (dst == END_OTHER && src == END_OTHER)
		*moves = is_host_address(s->dst) && is_host_address(s->src);
	return CUDA_SUCCESS;
}

void contents_move(const struct copy_shape *s)
{
	for (uint64_t plane = 0; plane < s->planes; plane++)
		for (uint64_t row = 0; row < s->rows; row++) {
			uint64_t to = s->dst + plane * s->dst_plane + row * s->dst_pitch;
			uint64_t from = s->src + plane * s->src_plane + row * s->src_pitch;

			memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, s->width);
		}
}

static void fill_row(char *row, const struct set_shape *s)
{
	if (s->element == 1) {
		memset(row, (int)(s->value & 0xff), s->width);
		return;
	}
	for (uint64_t i = 0; i < s->width; i++)
		memcpy(row + i * s->element, &s->value, s->element); /* little-endian */
}

CUresult contents_fill(const struct set_shape *s)
{
	uint64_t row_bytes = s->width * s->element;
	enum end_kind end;

	if (!s->width || !s->rows)
		return CUDA_SUCCESS;
	end = end_of(s->dst, (s->rows - 1) * s->pitch + row_bytes);
	if (end == END_OUTSIDE)
		return CUDA_ERROR_INVALID_VALUE;
	for (uint64_t row = 0; end == END_DEVICE && row < s->rows; row++)
		fill_row((char *)(uintptr_t)s->dst + row * s->pitch, s);
	return CUDA_SUCCESS;
}
