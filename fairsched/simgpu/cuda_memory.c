// SPDX-License-Identifier: Apache-2.0
/*
 * Memory: amounts and times, no contents. Device addresses are numbers below SIM_DEVICE_LIMIT; copies
 * take their time on the copy engine and move nothing; memsets are short kernels. Only pinned
 * allocations of up to 64 bytes (flags, semaphores) lie in memory the engine can write.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

#define GRANULE 512ull
#define FIRST_ADDRESS 0x302000000ull
#define PIN_SLOT 64u
#define MEMSET_LATENCY_NS 2000ull

static _Atomic uint64_t next_address = FIRST_ADDRESS;

static CUresult need_context(CUcontext *c)
{
	*c = current_context();
	if (*c && (*c)->is_live)
		return CUDA_SUCCESS;
	return client.is_ready ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult sim_cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
	uint64_t size = (bytes + GRANULE - 1) / GRANULE * GRANULE;
	struct cu_memory *m;
	struct sim_reply reply;
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!bytes || size < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	m = malloc(sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = client_rpc(SIM_RPC_ALLOC, c->gpu, c->region_index, size, &reply);
	m->rm_handle = rm_alloc_memory(c, size, rc != CUDA_SUCCESS);
	if (rc != CUDA_SUCCESS) {
		free(m);
		return rc;
	}
	m->bytes = size;
	m->address = atomic_fetch_add(&next_address, size);
	pthread_mutex_lock(&c->lock);
	m->next = c->memory;
	c->memory = m;
	pthread_mutex_unlock(&c->lock);
	*out = m->address;
	return CUDA_SUCCESS;
}

static struct cu_memory *unlink_memory(CUcontext c, CUdeviceptr address)
{
	struct cu_memory *m = NULL;

	pthread_mutex_lock(&c->lock);
	for (struct cu_memory **link = &c->memory; *link; link = &(*link)->next)
		if ((*link)->address == address) {
			m = *link;
			*link = m->next;
			break;
		}
	pthread_mutex_unlock(&c->lock);
	return m;
}

/* Any live context of the process may have made the allocation. */
static CUresult free_memory(CUdeviceptr address, bool synchronise)
{
	struct cu_memory *m = NULL;
	struct sim_reply reply;
	CUcontext c;
	CUresult rc;

	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!address)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&client.lock);
	for (c = client.live; c && !(m = unlink_memory(c, address)); c = c->next_live)
		;
	pthread_mutex_unlock(&client.lock);
	if (!m)
		return CUDA_ERROR_INVALID_VALUE;
	rc = synchronise ? stream_wait_all(c, false) : CUDA_SUCCESS;
	if (rc == CUDA_SUCCESS)
		rc = client_rpc(SIM_RPC_FREE, c->gpu, c->region_index, m->bytes, &reply);
	rm_free_memory(c, m->rm_handle);
	free(m);
	return rc;
}

CUresult sim_cuMemFree_v2(CUdeviceptr address)
{
	return free_memory(address, true);
}

CUresult sim_cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream s)
{
	(void)s; /* taken at once rather than in stream order */
	return sim_cuMemAlloc_v2(out, bytes);
}

CUresult sim_cuMemFreeAsync(CUdeviceptr address, CUstream s)
{
	(void)s;
	return free_memory(address, false);
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

CUresult sim_cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	(void)flags;
	if (rc != CUDA_SUCCESS)
		return rc;
	*out = bytes <= PIN_SLOT ? take_pin_slot(c) : NULL;
	if (!*out && posix_memalign(out, 4096, bytes))
		return CUDA_ERROR_OUT_OF_MEMORY;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocHost_v2(void **out, size_t bytes)
{
	return sim_cuMemHostAlloc(out, bytes, 0);
}

CUresult sim_cuMemFreeHost(void *p)
{
	bool found = false;

	pthread_mutex_lock(&client.lock);
	for (CUcontext c = client.live; c && !found; c = c->next_live) {
		int64_t offset = pinned_offset(c, (uintptr_t)p);

		if (offset < 0)
			continue;
		c->pin_in_use[offset / PIN_SLOT] = 0;
		found = true;
	}
	pthread_mutex_unlock(&client.lock);
	if (!found)
		free(p);
	return CUDA_SUCCESS;
}

CUresult sim_cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
	(void)flags;
	*out = (uintptr_t)p; /* one address space, as on every current GPU */
	return CUDA_SUCCESS;
}

static CUresult submit_bytes(CUstream handle, uint32_t op, uint64_t bytes, bool wait)
{
	struct sim_cmd cmd = {.op = op, .count = 1, .amount = bytes};
	double rate;
	uint64_t seq;
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS || s->capture)
		return rc;
	rate = (double)s->ctx->shm->spec.memset_bytes_per_s;
	if (op == SIM_KERNEL)
		cmd.amount = MEMSET_LATENCY_NS + (uint64_t)((double)bytes * 1e9 / rate);
	rc = queue_submit(s, &cmd, &seq);
	return rc == CUDA_SUCCESS && wait ? queue_wait(s, seq) : rc;
}

CUresult memory_copy(CUstream s, uint64_t bytes, bool wait)
{
	return submit_bytes(s, SIM_COPY, bytes, wait);
}

CUresult memory_set(CUstream s, uint64_t bytes, bool wait)
{
	return submit_bytes(s, SIM_KERNEL, bytes, wait);
}
