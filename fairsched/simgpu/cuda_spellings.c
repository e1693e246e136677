// SPDX-License-Identifier: Apache-2.0
/*
 * Copies and memsets, and the _ptsz/_ptds spellings: the same calls with NULL meaning the calling
 * thread's own stream instead of the legacy one.
 */
#include "cuda_api.h"

static CUstream per_thread(CUstream s)
{
	return s ? s : CU_STREAM_PER_THREAD;
}

#define PTSZ(name, stream, params, ...)         \
	CUresult sim_##name##_ptsz params;      \
	CUresult sim_##name##_ptsz params       \
	{                                       \
		stream = per_thread(stream);    \
		return sim_##name(__VA_ARGS__); \
	}

PTSZ(cuStreamSynchronize, s, (CUstream s), s)
PTSZ(cuStreamQuery, s, (CUstream s), s)
PTSZ(cuStreamWaitEvent, s, (CUstream s, CUevent e, unsigned int f), s, e, f)
PTSZ(cuStreamGetCtx, s, (CUstream s, CUcontext *out), s, out)
PTSZ(cuStreamGetFlags, s, (CUstream s, unsigned int *out), s, out)
PTSZ(cuStreamGetPriority, s, (CUstream s, int *out), s, out)
PTSZ(cuStreamBeginCapture_v2, s, (CUstream s, int mode), s, mode)
PTSZ(cuStreamEndCapture, s, (CUstream s, CUgraph *out), s, out)
PTSZ(cuStreamIsCapturing, s, (CUstream s, int *out), s, out)
PTSZ(cuStreamWaitValue32, s, (CUstream s, uint64_t a, uint32_t v, unsigned int f), s, a, v, f)
PTSZ(cuStreamWriteValue32, s, (CUstream s, uint64_t a, uint32_t v, unsigned int f), s, a, v, f)
PTSZ(cuStreamBatchMemOp, s, (CUstream s, unsigned int n, const void *p, unsigned int f), s, n, p, f)
PTSZ(cuEventRecord, s, (CUevent e, CUstream s), e, s)
PTSZ(cuEventRecordWithFlags, s, (CUevent e, CUstream s, unsigned int f), e, s, f)
PTSZ(cuLaunchHostFunc, s, (CUstream s, CUhostFn fn, void *user), s, fn, user)
PTSZ(cuGraphLaunch, s, (CUgraphExec g, CUstream s), g, s)
PTSZ(cuMemAllocAsync, s, (CUdeviceptr * out, size_t bytes, CUstream s), out, bytes, s)
PTSZ(cuMemFreeAsync, s, (CUdeviceptr address, CUstream s), address, s)
PTSZ(cuMemAllocFromPoolAsync, s, (CUdeviceptr * out, size_t bytes, struct cu_pool *pool, CUstream s), out,
     bytes, pool, s)
PTSZ(cuGraphUpload, s, (CUgraphExec g, CUstream s), g, s)
PTSZ(cuStreamGetId, s, (CUstream s, unsigned long long *id), s, id)
PTSZ(cuStreamGetDevice, s, (CUstream s, CUdevice *out), s, out)
PTSZ(cuStreamAddCallback, s, (CUstream s, CUstreamFn fn, void *user, unsigned int f), s, fn, user, f)
PTSZ(cuStreamAttachMemAsync, s, (CUstream s, CUdeviceptr a, size_t n, unsigned int f), s, a, n, f)
PTSZ(cuStreamGetCaptureInfo_v2, s,
     (CUstream s, int *status, uint64_t *id, CUgraph *graph, const void ***deps, size_t *count), s, status,
     id, graph, deps, count)
PTSZ(cuStreamGetCaptureInfo_v3, s,
     (CUstream s, int *status, uint64_t *id, CUgraph *graph, const void ***deps, const void **edges,
      size_t *count),
     s, status, id, graph, deps, edges, count)
PTSZ(cuLaunchKernel, s,
     (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
      unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra),
     f, gx, gy, gz, bx, by, bz, shared, s, params, extra)
PTSZ(cuLaunchCooperativeKernel, s,
     (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
      unsigned int bz, unsigned int shared, CUstream s, void **params),
     f, gx, gy, gz, bx, by, bz, shared, s, params)

/* The stream it may upload to is one that nothing is put into. */
CUresult sim_cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, void *params)
{
	return sim_cuGraphInstantiateWithParams(out, g, params);
}

CUresult sim_cuLaunchKernelEx_ptsz(const void *config, CUfunction f, void **params, void **extra)
{
	struct { /* CUlaunchConfig */
		unsigned int grid_block_shared[7];
		CUstream stream;
		void *attributes;
		unsigned int count;
	} copy;

	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	__builtin_memcpy(&copy, config, sizeof(copy));
	copy.stream = per_thread(copy.stream);
	return sim_cuLaunchKernelEx(&copy, f, params, extra);
}

/* A call without a stream argument: `name` on the legacy stream, `name`_pt on the thread's. `call` says `s`. */
#define SYNC(name, params, call)                   \
	CUresult sim_##name params;                \
	CUresult sim_##name##_pt params;           \
	CUresult sim_##name params                 \
	{                                          \
		CUstream s = NULL;                 \
		return call;                       \
	}                                          \
	CUresult sim_##name##_pt params            \
	{                                          \
		CUstream s = CU_STREAM_PER_THREAD; \
		return call;                       \
	}

#define UNPACK(...) __VA_ARGS__

/* One whose last argument is the stream; `params` are those before it. */
#define ASYNC(name, params, call)                            \
	CUresult sim_##name(UNPACK params, CUstream s);      \
	CUresult sim_##name##_pt(UNPACK params, CUstream s); \
	CUresult sim_##name(UNPACK params, CUstream s)       \
	{                                                    \
		return call;                                 \
	}                                                    \
	CUresult sim_##name##_pt(UNPACK params, CUstream s)  \
	{                                                    \
		s = per_thread(s);                           \
		return call;                                 \
	}

typedef CUdeviceptr ptr;

SYNC(cuMemcpyHtoD, (ptr a, const void *b, size_t n), memory_copy(s, a, (uintptr_t)b, n, true))
SYNC(cuMemcpyDtoH, (void *a, ptr b, size_t n), memory_copy(s, (uintptr_t)a, b, n, true))
SYNC(cuMemcpyDtoD, (ptr a, ptr b, size_t n), memory_copy(s, a, b, n, false))
SYNC(cuMemcpy, (ptr a, ptr b, size_t n), memory_copy(s, a, b, n, true))
SYNC(cuMemcpy2D, (const void *p), memory_copy_2d(s, p, true))
SYNC(cuMemcpy3D, (const void *p), memory_copy_3d(s, p, true))
ASYNC(cuMemcpyHtoDAsync, (ptr a, const void *b, size_t n), memory_copy(s, a, (uintptr_t)b, n, false))
ASYNC(cuMemcpyDtoHAsync, (void *a, ptr b, size_t n), memory_copy(s, (uintptr_t)a, b, n, false))
ASYNC(cuMemcpyDtoDAsync, (ptr a, ptr b, size_t n), memory_copy(s, a, b, n, false))
ASYNC(cuMemcpyAsync, (ptr a, ptr b, size_t n), memory_copy(s, a, b, n, false))
ASYNC(cuMemcpy2DAsync, (const void *p), memory_copy_2d(s, p, false))
ASYNC(cuMemcpy3DAsync, (const void *p), memory_copy_3d(s, p, false))

#define LINE(to, v, bytes, n)                                                  \
	&(struct set_shape)                                                    \
	{                                                                      \
		.dst = to, .value = v, .element = bytes, .width = n, .rows = 1 \
	}
#define PLANE(to, between, v, bytes, w, h)                                                       \
	&(struct set_shape)                                                                      \
	{                                                                                        \
		.dst = to, .pitch = between, .value = v, .element = bytes, .width = w, .rows = h \
	}

SYNC(cuMemsetD8, (ptr a, unsigned char v, size_t n), memory_set(s, LINE(a, v, 1, n), true))
SYNC(cuMemsetD16, (ptr a, unsigned short v, size_t n), memory_set(s, LINE(a, v, 2, n), true))
SYNC(cuMemsetD32, (ptr a, unsigned int v, size_t n), memory_set(s, LINE(a, v, 4, n), true))
ASYNC(cuMemsetD8Async, (ptr a, unsigned char v, size_t n), memory_set(s, LINE(a, v, 1, n), false))
ASYNC(cuMemsetD16Async, (ptr a, unsigned short v, size_t n), memory_set(s, LINE(a, v, 2, n), false))
ASYNC(cuMemsetD32Async, (ptr a, unsigned int v, size_t n), memory_set(s, LINE(a, v, 4, n), false))

#define RECTANGLES(bits, type)                                                             \
	SYNC(cuMemsetD2D##bits, (ptr a, size_t pitch, type v, size_t w, size_t h),         \
	     memory_set(s, PLANE(a, pitch, v, bits / 8, w, h), true))                      \
	ASYNC(cuMemsetD2D##bits##Async, (ptr a, size_t pitch, type v, size_t w, size_t h), \
	      memory_set(s, PLANE(a, pitch, v, bits / 8, w, h), false))
RECTANGLES(8, unsigned char)
RECTANGLES(16, unsigned short)
RECTANGLES(32, unsigned int)

ASYNC(cuMemPrefetchAsync, (ptr a, size_t n, CUdevice b), ((void)a, (void)b, memory_prefetch(s, n)))
ASYNC(cuMemPrefetchAsync_v2, (ptr a, size_t n, uint64_t location, unsigned int flags),
      ((void)a, (void)location, (void)flags, memory_prefetch(s, n)))
SYNC(cuMemcpyPeer, (ptr a, CUcontext ca, ptr b, CUcontext cb, size_t n),
     ((void)ca, (void)cb, memory_copy(s, a, b, n, false)))
ASYNC(cuMemcpyPeerAsync, (ptr a, CUcontext ca, ptr b, CUcontext cb, size_t n),
      ((void)ca, (void)cb, memory_copy(s, a, b, n, false)))
