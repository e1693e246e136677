// SPDX-License-Identifier: Apache-2.0
/*
 * Streams. NULL and 1 are the legacy default stream (slot 0), 2 the calling thread's own. A destroyed
 * stream's slot is used again once it has drained; its counters go on, so old waits stay valid.
 */
#include <stdlib.h>

#include "cuda_api.h"

struct thread_stream {
	struct thread_stream *next;
	CUcontext ctx;
	CUstream stream;
};

static pthread_key_t thread_key;
static pthread_once_t thread_key_once = PTHREAD_ONCE_INIT;

static void release(CUstream s)
{
	pthread_mutex_lock(&s->ctx->lock);
	s->is_closed = true;
	pthread_mutex_unlock(&s->ctx->lock);
}

static void release_thread_streams(void *list)
{
	struct thread_stream *t = list;

	while (t) {
		struct thread_stream *next = t->next;

		release(t->stream);
		free(t);
		t = next;
	}
}

static void make_thread_key(void)
{
	pthread_key_create(&thread_key, release_thread_streams);
}

/* With c->lock held. */
static CUstream take_slot(CUcontext c)
{
	for (uint32_t i = 0; i < SIM_MAX_STREAMS; i++) {
		CUstream s = c->streams[i];

		if (s && s->is_closed && queue_done(s) == queue_tail(s))
			return s;
		if (s)
			continue;
		s = calloc(1, sizeof(*s));
		if (!s)
			return NULL;
		s->ctx = c;
		s->index = i;
		pthread_mutex_init(&s->lock, NULL);
		c->streams[i] = s;
		return s;
	}
	return NULL;
}

CUresult stream_open(CUcontext c, uint32_t flags, CUstream *out)
{
	CUstream s;

	pthread_mutex_lock(&c->lock);
	s = take_slot(c);
	if (s) {
		s->is_closed = false;
		s->capture = NULL;
		atomic_store(&c->region->streams[s->index].flags, flags);
		if (atomic_load(&c->region->used_streams) <= s->index)
			atomic_store(&c->region->used_streams, s->index + 1);
	}
	pthread_mutex_unlock(&c->lock);
	*out = s;
	return s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult thread_stream(CUcontext c, CUstream *out)
{
	struct thread_stream *t;
	CUresult rc;

	pthread_once(&thread_key_once, make_thread_key);
	for (t = pthread_getspecific(thread_key); t; t = t->next)
		if (t->ctx == c) {
			*out = t->stream;
			return CUDA_SUCCESS;
		}
	t = calloc(1, sizeof(*t));
	if (!t)
		return CUDA_ERROR_OUT_OF_MEMORY;
	rc = stream_open(c, 0, &t->stream);
	if (rc != CUDA_SUCCESS) {
		free(t);
		return rc;
	}
	t->ctx = c;
	t->next = pthread_getspecific(thread_key);
	pthread_setspecific(thread_key, t);
	*out = t->stream;
	return CUDA_SUCCESS;
}

CUresult stream_resolve(CUstream handle, CUstream *out)
{
	CUcontext c = current_context();

	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if ((uintptr_t)handle > 2) {
		*out = handle;
		return handle->ctx->is_live ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	}
	if (!c || !c->is_live)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (handle == CU_STREAM_PER_THREAD)
		return thread_stream(c, out);
	*out = c->streams[0];
	return CUDA_SUCCESS;
}

static bool is_blocking(CUcontext c, uint32_t i)
{
	return !(atomic_load(&c->region->streams[i].flags) & SIM_STREAM_NONBLOCKING);
}

CUresult stream_wait_all(CUcontext c, bool only_blocking)
{
	uint64_t tails[SIM_MAX_STREAMS];
	uint32_t used = atomic_load(&c->region->used_streams);

	for (uint32_t i = 0; i < used; i++)
		tails[i] = queue_tail(c->streams[i]);
	for (uint32_t i = 0; i < used; i++) {
		CUresult rc;

		if (only_blocking && !is_blocking(c, i))
			continue;
		rc = queue_wait(c->streams[i], tails[i]);
		if (rc != CUDA_SUCCESS)
			return rc;
	}
	return CUDA_SUCCESS;
}

void stream_close_all(CUcontext c)
{
	for (uint32_t i = 0; i < SIM_MAX_STREAMS && c->streams[i]; i++)
		sim_futex_wake(&c->region->streams[i].wake_word);
	atomic_fetch_add(&c->region->host_word, 1);
	sim_futex_wake(&c->region->host_word);
}

CUresult sim_cuStreamCreate(CUstream *out, unsigned int flags)
{
	CUcontext c = current_context();

	if (!c)
		return client.is_ready ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
	return stream_open(c, flags & SIM_STREAM_NONBLOCKING, out);
}

CUresult sim_cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
	(void)priority; /* the model has no priorities */
	return sim_cuStreamCreate(out, flags);
}

CUresult sim_cuStreamDestroy_v2(CUstream s)
{
	if ((uintptr_t)s <= 2)
		return CUDA_ERROR_INVALID_HANDLE;
	release(s);
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamSynchronize(CUstream handle)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (s->index == 0)
		return stream_wait_all(s->ctx, true);
	return queue_wait(s, queue_tail(s));
}

CUresult sim_cuStreamQuery(CUstream handle)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	return queue_done(s) >= queue_tail(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult sim_cuStreamGetCtx(CUstream handle, CUcontext *out)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc == CUDA_SUCCESS)
		*out = s->ctx;
	return rc;
}

CUresult sim_cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc == CUDA_SUCCESS)
		*flags = atomic_load(&s->ctx->region->streams[s->index].flags) & SIM_STREAM_NONBLOCKING;
	return rc;
}

CUresult sim_cuStreamGetPriority(CUstream handle, int *priority)
{
	(void)handle;
	*priority = 0;
	return CUDA_SUCCESS;
}

/* Unlike that of any other stream there is. */
CUresult sim_cuStreamGetId(CUstream handle, unsigned long long *id)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc == CUDA_SUCCESS)
		*id = (uintptr_t)s;
	return rc;
}

CUresult sim_cuStreamGetDevice(CUstream handle, CUdevice *out)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc == CUDA_SUCCESS)
		*out = s->ctx->device;
	return rc;
}

/* Managed memory can be seen from everywhere at any time. */
CUresult sim_cuStreamAttachMemAsync(CUstream handle, CUdeviceptr address, size_t bytes, unsigned int flags)
{
	CUstream s;

	(void)address, (void)bytes, (void)flags;
	return stream_resolve(handle, &s);
}
