// SPDX-License-Identifier: Apache-2.0
/* Kernels and host functions. A kernel is GPU time and nothing else: cuda_duration.c says how much. */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

struct launch_config { /* CUlaunchConfig up to the part that is used */
	unsigned int grid_block_shared[7];
	CUstream stream;
};

static CUresult launch(CUfunction f, CUstream handle, void **params)
{
	struct sim_cmd cmd = {.op = SIM_KERNEL, .count = 1};
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
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
	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
	return launch(f, s, params);
}

CUresult sim_cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
				       unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
				       CUstream s, void **params)
{
	(void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared;
	return launch(f, s, params);
}

CUresult sim_cuLaunchKernelEx(const void *config, CUfunction f, void **params, void **extra)
{
	const struct launch_config *c = config;

	(void)extra;
	return c ? launch(f, c->stream, params) : CUDA_ERROR_INVALID_VALUE;
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
