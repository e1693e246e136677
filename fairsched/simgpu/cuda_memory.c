// SPDX-License-Identifier: Apache-2.0
/*
 * Allocations: what the GPU's budget holds, and what is page-locked on the host. Device addresses are below
 * SIM_DEVICE_LIMIT. Pinned allocations of up to 64 bytes (flags, semaphores) lie in memory the engine can write.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

#define GRANULE 512ull
#define PIN_SLOT 64u

static _Atomic uint64_t next_id = 1;

CUresult need_context(CUcontext *c)
{
	*c = current_context();
	if (*c && (*c)->is_live)
		return CUDA_SUCCESS;
	return client.is_ready ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
}

static void link_memory(CUcontext c, struct cu_memory *m)
{
	m->id = atomic_fetch_add(&next_id, 1);
	pthread_mutex_lock(&c->lock);
	m->next = c->memory;
	c->memory = m;
	pthread_mutex_unlock(&c->lock);
}

CUresult memory_alloc(CUdeviceptr *out, size_t bytes, enum memory_kind kind, struct cu_pool *pool)
{
	uint64_t size = (bytes + GRANULE - 1) / GRANULE * GRANULE;
	struct cu_memory *m;
	struct sim_reply reply;
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!out || !bytes || size < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = client_rpc(SIM_RPC_ALLOC, c->gpu, c->region_index, size, &reply);
	m->rm_handle = rm_alloc_memory(c, size, rc != CUDA_SUCCESS);
	if (rc != CUDA_SUCCESS) {
		free(m);
		return rc;
	}
	m->bytes = bytes;
	m->taken_bytes = size;
	m->kind = kind;
	m->pool = pool;
	contents_map(m);
	link_memory(c, m);
	*out = m->address;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	return memory_alloc(out, bytes, MEMORY_DEVICE, NULL);
}

/* It never moves: one memory for host and device is what a program sees of migration. */
CUresult sim_cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags)
{
	(void)flags;
	return memory_alloc(out, bytes, MEMORY_MANAGED, NULL);
}

/* Rows as far apart as the texture units of a real one ask for. */
CUresult sim_cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
				unsigned int element)
{
	size_t row = (width + GRANULE - 1) / GRANULE * GRANULE;

	if (!pitch || (element != 4 && element != 8 && element != 16) || row < width ||
	    (height && row > SIZE_MAX / height))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = row;
	return memory_alloc(out, row * height, MEMORY_DEVICE, NULL);
}

static bool is_on_device(const struct cu_memory *m)
{
	return m->kind == MEMORY_DEVICE || m->kind == MEMORY_MANAGED;
}

static struct cu_memory *unlink_memory(CUcontext c, uint64_t address, bool on_device)
{
	struct cu_memory *m = NULL;

	pthread_mutex_lock(&c->lock);
	for (struct cu_memory **link = &c->memory; *link; link = &(*link)->next)
		if ((*link)->address == address && is_on_device(*link) == on_device) {
			m = *link;
			*link = m->next;
			break;
		}
	pthread_mutex_unlock(&c->lock);
	return m;
}

/* Any live context of the process may have made the allocation. */
static struct cu_memory *take_memory(uint64_t address, bool on_device, CUcontext *owner)
{
	struct cu_memory *m = NULL;

	pthread_mutex_lock(&client.lock);
	for (*owner = client.live; *owner; *owner = (*owner)->next_live) {
		m = unlink_memory(*owner, address, on_device);
		if (m)
			break;
	}
	pthread_mutex_unlock(&client.lock);
	return m;
}

static CUresult free_memory(CUdeviceptr address, bool synchronise)
{
	struct cu_memory *m;
	struct sim_reply reply;
	CUcontext c;
	CUresult rc;

	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!address)
		return CUDA_SUCCESS;
	m = take_memory(address, true, &c);
	if (!m)
		return CUDA_ERROR_INVALID_VALUE;
	rc = synchronise ? stream_wait_all(c, false) : CUDA_SUCCESS;
	if (rc == CUDA_SUCCESS)
		rc = client_rpc(SIM_RPC_FREE, c->gpu, c->region_index, m->taken_bytes, &reply);
	rm_free_memory(c, m->rm_handle);
	if (m->pool)
		pool_give_back(m->pool, m->taken_bytes);
	contents_unmap(m);
	free(m);
	return rc;
}

CUresult sim_cuMemFree_v2(CUdeviceptr address)
{
	return free_memory(address, true);
}

CUresult sim_cuMemFreeAsync(CUdeviceptr address, CUstream s)
{
	(void)s;
	return free_memory(address, false);
}

/* With the end of a context; the engine gives back what it held. */
void memory_forget(CUcontext c)
{
	struct cu_memory *m, *next;

	pthread_mutex_lock(&c->lock);
	m = c->memory;
	c->memory = NULL;
	pthread_mutex_unlock(&c->lock);
	for (; m; m = next) {
		next = m->next;
		if (m->pool)
			pool_give_back(m->pool, m->taken_bytes);
		contents_unmap(m);
		free(m);
	}
}

CUresult sim_cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc != CUDA_SUCCESS)
		return rc;
	*total = c->shm->spec.vram_bytes;
	*free_bytes = c->shm->spec.vram_bytes - c->shm->vram_used_bytes;
	return CUDA_SUCCESS;
}

int64_t pinned_offset(const struct cu_ctx *c, uint64_t address)
{
	uint64_t base = (uintptr_t)c->region->pin;

	return address >= base && address < base + SIM_PIN_BYTES ? (int64_t)(address - base) : -1;
}

static void *take_pin_slot(CUcontext c)
{
	void *p = NULL;

	pthread_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < SIM_PIN_BYTES / PIN_SLOT && !p; i++)
		if (!c->pin_in_use[i]) {
			c->pin_in_use[i] = 1;
			p = &c->region->pin[i * PIN_SLOT];
			memset(p, 0, PIN_SLOT);
		}
	pthread_mutex_unlock(&c->lock);
	return p;
}

static CUresult note_host(CUcontext c, void *p, size_t bytes, unsigned int flags, enum memory_kind kind)
{
	struct cu_memory *m = calloc(1, sizeof(*m));

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->address = (uintptr_t)p;
	m->bytes = bytes;
	m->kind = kind;
	m->flags = flags;
	link_memory(c, m);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!out || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*out = bytes <= PIN_SLOT ? take_pin_slot(c) : NULL;
	if (!*out && posix_memalign(out, 4096, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return note_host(c, *out, bytes, flags, MEMORY_HOST);
}

CUresult sim_cuMemAllocHost_v2(void **out, size_t bytes)
{
	return sim_cuMemHostAlloc(out, bytes, 0);
}

CUresult sim_cuMemFreeHost(void *p)
{
	CUcontext c;
	struct cu_memory *m;

	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	m = take_memory((uintptr_t)p, false, &c);
	if (!m)
		return CUDA_ERROR_INVALID_VALUE;
	if (pinned_offset(c, m->address) >= 0)
		c->pin_in_use[pinned_offset(c, m->address) / PIN_SLOT] = 0;
	else
		free(p);
	free(m);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostRegister_v2(void *p, size_t bytes, unsigned int flags)
{
	struct cu_memory m;
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!p || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (memory_find((uintptr_t)p, &m, NULL))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	return note_host(c, p, bytes, flags, MEMORY_REGISTERED);
}

CUresult sim_cuMemHostUnregister(void *p)
{
	CUcontext c;
	struct cu_memory *m;

	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	m = take_memory((uintptr_t)p, false, &c);
	if (!m)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	free(m);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetFlags(unsigned int *flags, void *p)
{
	struct cu_memory m;

	if (!memory_find((uintptr_t)p, &m, NULL) || is_on_device(&m))
		return CUDA_ERROR_INVALID_VALUE;
	*flags = m.flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
	(void)flags;
	*out = (uintptr_t)p; /* one address space, as on every current GPU */
	return CUDA_SUCCESS;
}
