// SPDX-License-Identifier: Apache-2.0
/* What can be wished for of a context, and the kinds of access between GPUs: there is none. */
#include "cuda_api.h"

#define LIMITS 7

/* CUlimit by number: stack, printf buffer, heap, two of nested launches, L2 granularity and persisting L2. */
static const size_t default_limits[LIMITS] = {1024, 7340032, 8388608, 2, 2048, 128, 0};

CUresult sim_cuCtxGetLimit(size_t *value, int limit)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!value || limit < 0 || limit >= LIMITS)
		return CUDA_ERROR_INVALID_VALUE;
	*value = c->limits[limit] ? c->limits[limit] : default_limits[limit];
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetLimit(int limit, size_t value)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (limit < 0 || limit >= LIMITS)
		return CUDA_ERROR_INVALID_VALUE;
	c->limits[limit] = value;
	return CUDA_SUCCESS;
}

/* CU_FUNC_CACHE_PREFER_NONE, and banks of four bytes. */
CUresult sim_cuCtxGetCacheConfig(int *config)
{
	*config = 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetCacheConfig(int config)
{
	CUcontext c;

	(void)config;
	return need_context(&c);
}

CUresult sim_cuCtxGetSharedMemConfig(int *config)
{
	*config = 1;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSetSharedMemConfig(int config)
{
	return sim_cuCtxSetCacheConfig(config);
}

CUresult sim_cuCtxResetPersistingL2Cache(void)
{
	return sim_cuCtxSetCacheConfig(0);
}

CUresult sim_cuCtxSetFlags(unsigned int flags)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc == CUDA_SUCCESS)
		c->flags = flags;
	return rc;
}

CUresult sim_cuCtxGetId(CUcontext c, unsigned long long *id)
{
	if (!c)
		c = current_context();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	*id = (uintptr_t)c; /* never used again, because the struct is kept */
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	(void)dev, (void)peer;
	*can = 0;
	return need_init();
}

CUresult sim_cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to)
{
	(void)attribute;
	return sim_cuDeviceCanAccessPeer(value, from, to);
}

CUresult sim_cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	(void)peer, (void)flags;
	return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
}

CUresult sim_cuCtxDisablePeerAccess(CUcontext peer)
{
	(void)peer;
	return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

/* Recording starts and stops with nobody who records. */
CUresult sim_cuProfilerStart(void)
{
	return need_init();
}

CUresult sim_cuProfilerStop(void)
{
	return need_init();
}
