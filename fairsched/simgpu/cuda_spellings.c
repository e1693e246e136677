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
PTSZ(cuLaunchKernel, s,
     (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
      unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra),
     f, gx, gy, gz, bx, by, bz, shared, s, params, extra)
PTSZ(cuLaunchCooperativeKernel, s,
     (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
      unsigned int bz, unsigned int shared, CUstream s, void **params),
     f, gx, gy, gz, bx, by, bz, shared, s, params)

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

/* A call without a stream argument: `name` on the legacy stream, `name`_pt on the thread's. */
#define SYNC(name, action, bytes, wait, ...)                      \
	CUresult sim_##name(__VA_ARGS__);                         \
	CUresult sim_##name##_pt(__VA_ARGS__);                    \
	CUresult sim_##name(__VA_ARGS__)                          \
	{                                                         \
		(void)a, (void)b;                                 \
		return action(NULL, bytes, wait);                 \
	}                                                         \
	CUresult sim_##name##_pt(__VA_ARGS__)                     \
	{                                                         \
		(void)a, (void)b;                                 \
		return action(CU_STREAM_PER_THREAD, bytes, wait); \
	}

/* One with a stream argument `s`. */
#define ASYNC(name, action, bytes, ...)                     \
	CUresult sim_##name(__VA_ARGS__);                   \
	CUresult sim_##name##_pt(__VA_ARGS__);              \
	CUresult sim_##name(__VA_ARGS__)                    \
	{                                                   \
		(void)a, (void)b;                           \
		return action(s, bytes, false);             \
	}                                                   \
	CUresult sim_##name##_pt(__VA_ARGS__)               \
	{                                                   \
		(void)a, (void)b;                           \
		return action(per_thread(s), bytes, false); \
	}

SYNC(cuMemcpyHtoD, memory_copy, n, true, CUdeviceptr a, const void *b, size_t n)
SYNC(cuMemcpyDtoH, memory_copy, n, true, void *a, CUdeviceptr b, size_t n)
SYNC(cuMemcpyDtoD, memory_copy, n, false, CUdeviceptr a, CUdeviceptr b, size_t n)
SYNC(cuMemcpy, memory_copy, n, true, CUdeviceptr a, CUdeviceptr b, size_t n)
SYNC(cuMemsetD8, memory_set, n, true, CUdeviceptr a, unsigned char b, size_t n)
SYNC(cuMemsetD32, memory_set, 4 * n, true, CUdeviceptr a, unsigned int b, size_t n)
ASYNC(cuMemcpyHtoDAsync, memory_copy, n, CUdeviceptr a, const void *b, size_t n, CUstream s)
ASYNC(cuMemcpyDtoHAsync, memory_copy, n, void *a, CUdeviceptr b, size_t n, CUstream s)
ASYNC(cuMemcpyDtoDAsync, memory_copy, n, CUdeviceptr a, CUdeviceptr b, size_t n, CUstream s)
ASYNC(cuMemcpyAsync, memory_copy, n, CUdeviceptr a, CUdeviceptr b, size_t n, CUstream s)
ASYNC(cuMemsetD8Async, memory_set, n, CUdeviceptr a, unsigned char b, size_t n, CUstream s)
ASYNC(cuMemsetD32Async, memory_set, 4 * n, CUdeviceptr a, unsigned int b, size_t n, CUstream s)
ASYNC(cuMemPrefetchAsync, memory_copy, n, CUdeviceptr a, size_t n, CUdevice b, CUstream s)

CUresult sim_cuMemcpyPeerAsync(CUdeviceptr a, CUcontext ca, CUdeviceptr b, CUcontext cb, size_t n, CUstream s)
{
	(void)a, (void)ca, (void)b, (void)cb;
	return memory_copy(s, n, false);
}

CUresult sim_cuMemcpyPeerAsync_pt(CUdeviceptr a, CUcontext ca, CUdeviceptr b, CUcontext cb, size_t n,
				  CUstream s)
{
	return sim_cuMemcpyPeerAsync(a, ca, b, cb, n, per_thread(s));
}
