// SPDX-License-Identifier: Apache-2.0
/*
 * Memory pools: a name and a count. Nothing is kept back: what is freed goes to the GPU at once, and allocations are
 * made when they are called, not in stream order.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

enum { /* CUmemPool_attribute */
	FIRST_REUSE = 1,
	LAST_REUSE = 3, /* the three are ints, those that follow are 64 bits wide */
	RELEASE_THRESHOLD = 4,
	RESERVED_CURRENT = 5,
	RESERVED_HIGH = 6,
	USED_CURRENT = 7,
	USED_HIGH = 8
};

#define READ_WRITE 3

struct cu_pool {
	CUdevice device;
	bool is_started;
	int reuse[LAST_REUSE + 1];
	uint64_t release_threshold;
	_Atomic uint64_t used;
	_Atomic uint64_t high;
};

struct pool_props { /* CUmemPoolProps up to the part that is used */
	int type, handle_types;
	struct {
		int type, id;
	} location;
};

static struct cu_pool defaults[SIM_MAX_GPUS];
static struct cu_pool *in_use[SIM_MAX_GPUS];

static void start_pool(struct cu_pool *p, CUdevice dev)
{
	p->device = dev;
	p->is_started = true;
	for (int i = FIRST_REUSE; i <= LAST_REUSE; i++)
		p->reuse[i] = 1;
}

static bool is_device(CUdevice dev)
{
	return client.is_ready && dev >= 0 && dev < client.device_count;
}

CUresult sim_cuDeviceGetDefaultMemPool(struct cu_pool **out, CUdevice dev)
{
	if (!is_device(dev))
		return client.is_ready ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NOT_INITIALIZED;
	pthread_mutex_lock(&client.lock);
	if (!defaults[dev].is_started)
		start_pool(&defaults[dev], dev);
	pthread_mutex_unlock(&client.lock);
	*out = &defaults[dev];
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetMemPool(struct cu_pool **out, CUdevice dev)
{
	CUresult rc = sim_cuDeviceGetDefaultMemPool(out, dev);

	if (rc == CUDA_SUCCESS && in_use[dev])
		*out = in_use[dev];
	return rc;
}

CUresult sim_cuDeviceSetMemPool(CUdevice dev, struct cu_pool *pool)
{
	if (!is_device(dev) || !pool || pool->device != dev)
		return CUDA_ERROR_INVALID_VALUE;
	in_use[dev] = pool;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolCreate(struct cu_pool **out, const void *props)
{
	struct pool_props p;

	if (!out || !props)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&p, props, sizeof(p));
	if (p.handle_types) /* sharing with other processes */
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!is_device(p.location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	start_pool(*out, p.location.id);
	return CUDA_SUCCESS;
}

/* The struct is kept, as the real pool is until what was allocated from it is freed. */
CUresult sim_cuMemPoolDestroy(struct cu_pool *pool)
{
	if (!pool || pool == &defaults[pool->device])
		return CUDA_ERROR_INVALID_VALUE;
	if (in_use[pool->device] == pool)
		in_use[pool->device] = NULL;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolTrimTo(struct cu_pool *pool, size_t keep)
{
	(void)keep;
	return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemPoolSetAttribute(struct cu_pool *pool, int attribute, const void *value)
{
	uint64_t wide;

	if (!pool || !value)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute >= FIRST_REUSE && attribute <= LAST_REUSE) {
		memcpy(&pool->reuse[attribute], value, sizeof(int));
		return CUDA_SUCCESS;
	}
	memcpy(&wide, value, sizeof(wide));
	if (attribute == RELEASE_THRESHOLD)
		pool->release_threshold = wide;
	else if (attribute == USED_HIGH && !wide)
		atomic_store(&pool->high, atomic_load(&pool->used));
	else if (attribute != RESERVED_HIGH || wide)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolGetAttribute(struct cu_pool *pool, int attribute, void *value)
{
	uint64_t wide;

	if (!pool || !value || attribute < FIRST_REUSE || attribute > USED_HIGH)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute <= LAST_REUSE) {
		memcpy(value, &pool->reuse[attribute], sizeof(int));
		return CUDA_SUCCESS;
	}
	if (attribute == RELEASE_THRESHOLD)
		wide = pool->release_threshold;
	else
		wide = attribute == RESERVED_HIGH || attribute == USED_HIGH ? atomic_load(&pool->high)
									    : atomic_load(&pool->used);
	memcpy(value, &wide, sizeof(wide));
	return CUDA_SUCCESS;
}

CUresult sim_cuMemPoolSetAccess(struct cu_pool *pool, const void *map, size_t count)
{
	(void)map, (void)count;
	return pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemPoolGetAccess(int *flags, struct cu_pool *pool, const void *location)
{
	if (!flags || !pool || !location)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = READ_WRITE;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, struct cu_pool *pool, CUstream handle)
{
	struct cu_memory m;
	uint64_t used, high;
	CUresult rc;

	(void)handle;
	if (!pool)
		return CUDA_ERROR_INVALID_VALUE;
	rc = memory_alloc(out, bytes, MEMORY_DEVICE, pool);
	if (rc != CUDA_SUCCESS || !memory_find(*out, &m, NULL))
		return rc;
	used = atomic_fetch_add(&pool->used, m.taken_bytes) + m.taken_bytes;
	high = atomic_load(&pool->high);
	while (used > high && !atomic_compare_exchange_weak(&pool->high, &high, used))
		;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream s)
{
	struct cu_pool *pool;
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc == CUDA_SUCCESS)
		rc = sim_cuDeviceGetMemPool(&pool, c->device);
	return rc == CUDA_SUCCESS ? sim_cuMemAllocFromPoolAsync(out, bytes, pool, s) : rc;
}

void pool_give_back(struct cu_pool *pool, uint64_t bytes)
{
	atomic_fetch_sub(&pool->used, bytes);
}
