/* SPDX-License-Identifier: Apache-2.0 */
/* The implementations behind the exported stubs. Argument types are ABI-equal to the driver API's. */
#ifndef CUDA_API_H
#define CUDA_API_H

#include "cuda_int.h"

#define SIM_DEVICE_LIMIT (1ull << 44) /* device addresses are below, host ones above */

extern uint32_t sim_gate; /* read by every stub's first instruction */

CUresult need_init(void);
CUresult need_context(CUcontext *c);
CUresult memory_copy(CUstream s, uint64_t dst, uint64_t src, uint64_t bytes, bool wait);
CUresult memory_prefetch(CUstream s, uint64_t bytes);
CUresult memory_copy_2d(CUstream s, const void *params, bool wait);
CUresult memory_copy_3d(CUstream s, const void *params, bool wait);
CUresult memory_set(CUstream s, const struct set_shape *shape, bool wait);

/* Those that other parts, or the per-thread spellings in cuda_spellings.c, call. */
CUresult sim_cuEventRecord(CUevent e, CUstream s);
CUresult sim_cuEventRecordWithFlags(CUevent e, CUstream s, unsigned int flags);
CUresult sim_cuGraphCreate(CUgraph *out, unsigned int flags);
CUresult sim_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, void *params);
CUresult sim_cuGraphUpload(CUgraphExec g, CUstream s);
CUresult sim_cuGraphLaunch(CUgraphExec g, CUstream s);
CUresult sim_cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
				       unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
				       CUstream s, void **params);
CUresult sim_cuLaunchHostFunc(CUstream s, CUhostFn fn, void *user);
CUresult sim_cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			    unsigned int by, unsigned int bz, unsigned int shared, CUstream s, void **params,
			    void **extra);
CUresult sim_cuLaunchKernelEx(const void *config, CUfunction f, void **params, void **extra);
CUresult sim_cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream s);
CUresult sim_cuMemFreeAsync(CUdeviceptr address, CUstream s);
CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, struct cu_pool *pool, CUstream s);
CUresult sim_cuStreamAddCallback(CUstream s, CUstreamFn fn, void *user, unsigned int flags);
CUresult sim_cuStreamAttachMemAsync(CUstream s, CUdeviceptr address, size_t bytes, unsigned int flags);
CUresult sim_cuStreamGetCaptureInfo_v2(CUstream s, int *status, uint64_t *id, CUgraph *graph,
				       const void ***deps, size_t *count);
CUresult sim_cuStreamGetCaptureInfo_v3(CUstream s, int *status, uint64_t *id, CUgraph *graph,
				       const void ***deps, const void **edges, size_t *count);
CUresult sim_cuStreamGetDevice(CUstream s, CUdevice *out);
CUresult sim_cuStreamGetId(CUstream s, unsigned long long *id);
CUresult sim_cuStreamBatchMemOp(CUstream s, unsigned int count, const void *params, unsigned int flags);
CUresult sim_cuStreamBeginCapture_v2(CUstream s, int mode);
CUresult sim_cuStreamEndCapture(CUstream s, CUgraph *out);
CUresult sim_cuStreamGetCtx(CUstream s, CUcontext *out);
CUresult sim_cuStreamGetFlags(CUstream s, unsigned int *flags);
CUresult sim_cuStreamGetPriority(CUstream s, int *priority);
CUresult sim_cuStreamIsCapturing(CUstream s, int *status);
CUresult sim_cuStreamQuery(CUstream s);
CUresult sim_cuStreamSynchronize(CUstream s);
CUresult sim_cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags);
CUresult sim_cuStreamWaitValue32(CUstream s, uint64_t address, uint32_t value, unsigned int flags);
CUresult sim_cuStreamWriteValue32(CUstream s, uint64_t address, uint32_t value, unsigned int flags);

#endif
