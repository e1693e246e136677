// SPDX-License-Identifier: Apache-2.0
/*
 * Kernels, modules, host functions, graphs. A kernel is GPU time and nothing else: kernelParams[0]
 * points at its duration (uint64_t ns); without parameters the function's name tells ("k_250us",
 * "spin_3ms", "x_700ns"; 100 us if it does not).
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

#define DEFAULT_KERNEL_NS 100000ull
#define MAX_KERNEL_NS 3600000000000ull

struct launch_config { /* CUlaunchConfig up to the part that is used */
	unsigned int grid_block_shared[7];
	CUstream stream;
};

struct kernel_node_params { /* CUDA_KERNEL_NODE_PARAMS, v1 and v2 alike */
	CUfunction function;
	unsigned int grid_block_shared[7];
	void **params;
	void **extra;
};

static uint64_t name_ns(const char *name)
{
	const char *digits = strpbrk(name, "0123456789");
	char *unit;
	uint64_t n;

	if (!digits)
		return DEFAULT_KERNEL_NS;
	n = strtoull(digits, &unit, 10);
	if (!strncmp(unit, "ns", 2))
		return n;
	if (!strncmp(unit, "us", 2))
		return n * 1000;
	if (!strncmp(unit, "ms", 2))
		return n * 1000000;
	return DEFAULT_KERNEL_NS;
}

static uint64_t kernel_ns(CUfunction f, void **params)
{
	uint64_t ns = f->default_ns;

	if (params && params[0])
		memcpy(&ns, params[0], sizeof(ns));
	return ns < MAX_KERNEL_NS ? ns : MAX_KERNEL_NS;
}

static CUresult launch(CUfunction f, CUstream handle, void **params)
{
	struct sim_cmd cmd = {.op = SIM_KERNEL, .count = 1};
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	cmd.amount = kernel_ns(f, params);
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

CUresult sim_cuModuleLoadData(void **module, const void *image)
{
	(void)image;
	if (!current_context())
		return client.is_ready ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_INITIALIZED;
	*module = malloc(1); /* an address of its own is all a module is */
	return *module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuModuleUnload(void *module)
{
	free(module);
	return CUDA_SUCCESS;
}

CUresult sim_cuModuleGetFunction(CUfunction *out, void *module, const char *name)
{
	CUfunction f;

	if (!module || !name)
		return CUDA_ERROR_INVALID_HANDLE;
	f = malloc(sizeof(*f));
	if (!f)
		return CUDA_ERROR_OUT_OF_MEMORY;
	f->default_ns = name_ns(name);
	*out = f;
	return CUDA_SUCCESS;
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

CUresult sim_cuGraphCreate(CUgraph *out, unsigned int flags)
{
	(void)flags;
	*out = calloc(1, sizeof(**out));
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuGraphDestroy(CUgraph g)
{
	free(g);
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphAddKernelNode(void **node, CUgraph g, const void *deps, size_t count, const void *params)
{
	const struct kernel_node_params *p = params;

	(void)deps, (void)count;
	if (!g || !p || !p->function)
		return CUDA_ERROR_INVALID_VALUE;
	g->total_ns += kernel_ns(p->function, p->params);
	g->kernels++;
	if (node)
		*node = (void *)(uintptr_t)g->kernels;
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
	(void)flags;
	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	*out = malloc(sizeof(**out));
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	**out = *g;
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, void **error_node, char *log, size_t size)
{
	(void)error_node, (void)log, (void)size;
	return sim_cuGraphInstantiateWithFlags(out, g, 0);
}

/* One command: a graph occupies the GPU for the sum of its kernels and may be preempted anywhere. */
CUresult sim_cuGraphLaunch(CUgraphExec g, CUstream handle)
{
	struct sim_cmd cmd = {.op = SIM_KERNEL};
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	cmd.count = g->kernels;
	cmd.amount = g->total_ns;
	return queue_submit(s, &cmd, NULL);
}

CUresult sim_cuStreamBeginCapture_v2(CUstream handle, int mode)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	(void)mode;
	if (rc != CUDA_SUCCESS)
		return rc;
	if (s->index == 0 || s->capture)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_cuGraphCreate(&s->capture, 0);
}

CUresult sim_cuStreamEndCapture(CUstream handle, CUgraph *out)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!s->capture)
		return CUDA_ERROR_INVALID_VALUE;
	*out = s->capture;
	s->capture = NULL;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamIsCapturing(CUstream handle, int *status)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc == CUDA_SUCCESS)
		*status = s->capture != NULL;
	return rc;
}
