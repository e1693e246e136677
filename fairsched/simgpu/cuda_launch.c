// SPDX-License-Identifier: Apache-2.0
/* Kernels and host functions. A kernel is GPU time and nothing else: cuda_duration.c says how much. */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

struct launch_config { /* CUlaunchConfig up to the part that is used */
	unsigned int grid_block_shared[7];
	CUstream stream;
};

/* Blocks of the grid and threads of a block in x, y, z; dynamic shared bytes. */
#define SHAPE(...) ((const unsigned int[7]){__VA_ARGS__})
#define MAX_GRID_YZ 65535u
#define MAX_THREADS_Z 64u
#define MAX_DYNAMIC_SHARED 8 /* CUfunction_attribute */

/* As the driver refuses it: too large a grid or block, or more shared memory than was asked for beforehand. */
static bool fits(const CUfunction f, const unsigned int shape[7])
{
	uint64_t threads = (uint64_t)shape[3] * shape[4] * shape[5];

	for (int i = 0; i < 6; i++)
		if (!shape[i])
			return false;
	if (shape[0] > INT32_MAX || shape[1] > MAX_GRID_YZ || shape[2] > MAX_GRID_YZ)
		return false;
	return shape[3] <= (unsigned int)f->attributes[0] && shape[4] <= (unsigned int)f->attributes[0] &&
	       shape[5] <= MAX_THREADS_Z && threads <= (uint64_t)f->attributes[0] &&
	       shape[6] <= (unsigned int)f->attributes[MAX_DYNAMIC_SHARED];
}

static CUresult launch(CUfunction f, const unsigned int shape[7], CUstream handle, void **params)
{
	struct sim_cmd cmd = {.op = SIM_KERNEL, .count = 1};
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!fits(f, shape))
		return CUDA_ERROR_INVALID_VALUE;
	cmd.amount = duration_ns(f, params);
	if (s->capture) {
		s->capture->total_ns += cmd.amount;
		s->capture->kernels++;
		return CUDA_SUCCESS;
	}
	return queue_submit(s, &cmd, NULL);
}

CUresult sim_cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			    unsigned int by, unsigned int bz, unsigned int shared, CUstream s, void **params,
			    void **extra)
{
	(void)extra;
	return launch(f, SHAPE(gx, gy, gz, bx, by, bz, shared), s, params);
}

CUresult sim_cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
				       unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
				       CUstream s, void **params)
{
	return launch(f, SHAPE(gx, gy, gz, bx, by, bz, shared), s, params);
}

CUresult sim_cuLaunchKernelEx(const void *config, CUfunction f, void **params, void **extra)
{
	const struct launch_config *c = config;

	(void)extra;
	return c ? launch(f, c->grid_block_shared, c->stream, params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *user)
{
	struct sim_cmd cmd = {.op = SIM_HOST_FUNC, .user = {(uintptr_t)fn, (uintptr_t)user}};
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS || s->capture)
		return rc;
	host_thread_start(s->ctx);
	return queue_submit(s, &cmd, NULL);
}
