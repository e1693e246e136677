// SPDX-License-Identifier: Apache-2.0
/* Contexts, and the primary ones. */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

static bool is_live(CUcontext c)
{
	for (CUcontext i = client.live; i; i = i->next_live)
		if (i == c)
			return c->is_live;
	return false;
}

/* With client.lock held. */
static CUresult open_context(CUcontext *out, unsigned int flags, CUdevice dev)
{
	struct sim_device *d = &client.devices[dev];
	struct cu_ctx *c = calloc(1, sizeof(*c));
	struct sim_reply reply;
	CUstream legacy;
	CUresult rc;

	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = client_rpc(SIM_RPC_CTX_CREATE, d->gpu, client.mps_socket >= 0, (uintptr_t)c, &reply);
	if (rc != CUDA_SUCCESS) {
		free(c);
		return rc;
	}
	c->gpu = d->gpu;
	c->device = dev;
	c->shm = d->shm;
	c->region_index = (uint32_t)reply.a;
	c->region = (struct sim_region *)(void *)(d->regions + reply.a * sizeof(struct sim_region));
	c->flags = flags;
	c->is_live = true;
	pthread_mutex_init(&c->lock, NULL);
	rc = stream_open(c, SIM_STREAM_LEGACY, &legacy);
	rm_create_context(c);
	c->next_live = client.live;
	client.live = c;
	*out = c;
	return rc;
}

/* With client.lock held. The struct is kept: handles to it may still be about. */
static CUresult close_context(CUcontext c)
{
	CUcontext *link = &client.live;
	struct sim_reply reply;

	stream_wait_all(c, false);
	rm_destroy_context(c);
	c->is_live = false;
	while (*link != c)
		link = &(*link)->next_live;
	*link = c->next_live;
	stream_close_all(c);
	memory_forget(c);
	return client_rpc(SIM_RPC_CTX_DESTROY, c->gpu, c->region_index, 0, &reply);
}

CUresult sim_cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice dev)
{
	CUresult rc = need_init();

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!out || dev < 0 || dev >= client.device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&client.lock);
	rc = open_context(out, flags, dev);
	pthread_mutex_unlock(&client.lock);
	return rc == CUDA_SUCCESS ? push_context(*out) : rc;
}

CUresult sim_cuCtxCreate_v3(CUcontext *out, void *params, int count, unsigned int flags, CUdevice dev)
{
	(void)params;
	(void)count;
	return sim_cuCtxCreate_v2(out, flags, dev);
}

/* The parameters ask for MPS shares and for graphics, which are not there. */
CUresult sim_cuCtxCreate_v4(CUcontext *out, void *params, unsigned int flags, CUdevice dev)
{
	(void)params;
	return sim_cuCtxCreate_v2(out, flags, dev);
}

CUresult sim_cuCtxDestroy_v2(CUcontext c)
{
	CUresult rc = need_init();

	if (rc != CUDA_SUCCESS)
		return rc;
	pthread_mutex_lock(&client.lock);
	rc = is_live(c) ? close_context(c) : CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_unlock(&client.lock);
	if (rc == CUDA_SUCCESS && current_context() == c)
		pop_context();
	return rc;
}

CUresult sim_cuCtxSetCurrent(CUcontext c)
{
	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	pop_context();
	return c ? push_context(c) : CUDA_SUCCESS;
}

CUresult sim_cuCtxGetCurrent(CUcontext *out)
{
	*out = current_context();
	return need_init();
}

CUresult sim_cuCtxPushCurrent_v2(CUcontext c)
{
	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	return c ? push_context(c) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult sim_cuCtxPopCurrent_v2(CUcontext *out)
{
	if (!current_context())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (out)
		*out = current_context();
	pop_context();
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetDevice(CUdevice *out)
{
	if (!current_context())
		return client.is_ready ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
	*out = current_context()->device;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetFlags(unsigned int *flags)
{
	if (!current_context())
		return CUDA_ERROR_INVALID_CONTEXT;
	*flags = current_context()->flags;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetApiVersion(CUcontext c, unsigned int *version)
{
	(void)c;
	*version = 3020;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

CUresult sim_cuCtxSynchronize(void)
{
	CUcontext c = current_context();

	if (!c)
		return client.is_ready ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
	return stream_wait_all(c, false);
}

static CUresult primary(CUdevice dev, struct sim_device **out)
{
	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (dev < 0 || dev >= client.device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*out = &client.devices[dev];
	return CUDA_SUCCESS;
}

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
	struct sim_device *d;
	CUresult rc = primary(dev, &d);

	if (rc != CUDA_SUCCESS)
		return rc;
	pthread_mutex_lock(&client.lock);
	if (!d->primary)
		rc = open_context(&d->primary, d->primary_flags, dev);
	if (rc == CUDA_SUCCESS) {
		d->primary_refs++;
		*out = d->primary;
	}
	pthread_mutex_unlock(&client.lock);
	return rc;
}

static CUresult primary_release(CUdevice dev, bool reset)
{
	struct sim_device *d;
	CUresult rc = primary(dev, &d);

	if (rc != CUDA_SUCCESS)
		return rc;
	pthread_mutex_lock(&client.lock);
	if (!d->primary_refs && !reset)
		rc = CUDA_ERROR_INVALID_CONTEXT;
	else if (d->primary_refs)
		d->primary_refs--;
	if (d->primary && (reset || !d->primary_refs)) {
		rc = close_context(d->primary);
		d->primary = NULL;
		d->primary_refs = 0;
	}
	pthread_mutex_unlock(&client.lock);
	return rc;
}

CUresult sim_cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	return primary_release(dev, false);
}

CUresult sim_cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	return primary_release(dev, true);
}

CUresult sim_cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	struct sim_device *d;
	CUresult rc = primary(dev, &d);

	if (rc == CUDA_SUCCESS) {
		d->primary_flags = flags;
		if (d->primary)
			d->primary->flags = flags;
	}
	return rc;
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	struct sim_device *d;
	CUresult rc = primary(dev, &d);

	if (rc == CUDA_SUCCESS) {
		*flags = d->primary_flags;
		*active = d->primary != NULL;
	}
	return rc;
}
