// SPDX-License-Identifier: Apache-2.0
/* Events: stamped by the engine at the time the work before them ended. */
#include <stdlib.h>

#include "cuda_api.h"

CUresult sim_cuEventCreate(CUevent *out, unsigned int flags)
{
	CUcontext c = current_context();
	CUevent e;

	(void)flags;
	if (!c)
		return client.is_ready ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
	e = calloc(1, sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->ctx = c;
	pthread_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < SIM_MAX_EVENTS; i++) {
		uint32_t slot = (c->next_event + i) % SIM_MAX_EVENTS;

		if (c->event_in_use[slot])
			continue;
		c->event_in_use[slot] = 1;
		c->next_event = slot + 1;
		e->slot = slot;
		/* The slot's generations go on, or a new event would look recorded. */
		e->generation = c->event_generation[slot];
		e->first_generation = e->generation;
		pthread_mutex_unlock(&c->lock);
		*out = e;
		return CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&c->lock);
	free(e);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuEventDestroy_v2(CUevent e)
{
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&e->ctx->lock);
	e->ctx->event_in_use[e->slot] = 0;
	pthread_mutex_unlock(&e->ctx->lock);
	free(e);
	return CUDA_SUCCESS;
}

static bool is_recorded(CUevent e)
{
	return e->generation > e->first_generation;
}

CUresult sim_cuEventRecord(CUevent e, CUstream handle)
{
	struct sim_cmd cmd = {.op = SIM_EVENT};
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!e || e->ctx != s->ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->capture)
		return CUDA_SUCCESS;
	e->generation = ++s->ctx->event_generation[e->slot];
	e->stream = s;
	cmd.target = e->slot;
	cmd.seq = e->generation;
	return queue_submit(s, &cmd, &e->seq);
}

CUresult sim_cuEventRecordWithFlags(CUevent e, CUstream handle, unsigned int flags)
{
	(void)flags;
	return sim_cuEventRecord(e, handle);
}

CUresult sim_cuEventQuery(CUevent e)
{
	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!is_recorded(e) || queue_done(e->stream) >= e->seq)
		return CUDA_SUCCESS;
	return CUDA_ERROR_NOT_READY;
}

CUresult sim_cuEventSynchronize(CUevent e)
{
	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	return is_recorded(e) ? queue_wait(e->stream, e->seq) : CUDA_SUCCESS;
}

static uint64_t event_ns(CUevent e)
{
	return atomic_load(&e->ctx->region->events[e->slot].time_ns);
}

CUresult sim_cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	if (!start || !end || !is_recorded(start) || !is_recorded(end))
		return CUDA_ERROR_INVALID_HANDLE;
	if (sim_cuEventQuery(start) != CUDA_SUCCESS || sim_cuEventQuery(end) != CUDA_SUCCESS)
		return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)(int64_t)(event_ns(end) - event_ns(start)) / 1e6);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamWaitEvent(CUstream handle, CUevent e, unsigned int flags)
{
	struct sim_cmd cmd = {.op = SIM_WAIT_EVENT};
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	(void)flags;
	if (rc != CUDA_SUCCESS)
		return rc;
	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	if (s->capture || !is_recorded(e))
		return CUDA_SUCCESS;
	cmd.target = sim_pack_event(e->ctx->gpu, e->ctx->region_index, e->slot);
	cmd.seq = e->generation;
	return queue_submit(s, &cmd, NULL);
}
