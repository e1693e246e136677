// SPDX-License-Identifier: Apache-2.0
/*
 * Graphs, made by hand or by capture of a stream. One is the sum of its kernels; what else is recorded (copies,
 * memsets, events) is left out.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

struct kernel_node_params { /* CUDA_KERNEL_NODE_PARAMS, v1 and v2 alike */
	CUfunction function;
	unsigned int grid_block_shared[7];
	void **params;
	void **extra;
};

CUresult sim_cuGraphCreate(CUgraph *out, unsigned int flags)
{
	(void)flags;
	*out = calloc(1, sizeof(**out));
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuGraphDestroy(CUgraph g)
{
	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	user_objects_drop(g);
	free(g);
	return CUDA_SUCCESS;
}

CUresult sim_cuGraphAddKernelNode(void **node, CUgraph g, const void *deps, size_t count, const void *params)
{
	const struct kernel_node_params *p = params;

	(void)deps, (void)count;
	if (!g || !p || !p->function)
		return CUDA_ERROR_INVALID_VALUE;
	g->total_ns += duration_ns(p->function, p->params);
	g->kernels++;
	if (node)
		*node = (void *)(uintptr_t)g->kernels;
	return CUDA_SUCCESS;
}

/* An executable graph is a copy as well. */
CUresult sim_cuGraphClone(CUgraph *out, CUgraph g)
{
	if (!g || !out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(*out)->total_ns = g->total_ns;
	(*out)->kernels = g->kernels;
	return user_objects_share(*out, g);
}

CUresult sim_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
	(void)flags;
	if (!g)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_cuGraphClone(out, g);
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

/* The id is the graph's address, for one capture is one graph; the nodes of a graph cannot be listed. */
CUresult sim_cuStreamGetCaptureInfo_v2(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
				       const void ***deps, size_t *count)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	if (rc != CUDA_SUCCESS)
		return rc;
	*status = s->capture != NULL;
	if (id)
		*id = (uintptr_t)s->capture;
	if (graph)
		*graph = s->capture;
	if (deps)
		*deps = NULL;
	if (count)
		*count = 0;
	return CUDA_SUCCESS;
}

CUresult sim_cuStreamGetCaptureInfo_v3(CUstream handle, int *status, uint64_t *id, CUgraph *graph,
				       const void ***deps, const void **edges, size_t *count)
{
	if (edges)
		*edges = NULL;
	return sim_cuStreamGetCaptureInfo_v2(handle, status, id, graph, deps, count);
}

CUresult sim_cuThreadExchangeStreamCaptureMode(int *mode)
{
	static __thread int own;
	int before = own;

	own = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

struct instantiate_params { /* CUDA_GRAPH_INSTANTIATE_PARAMS */
	uint64_t flags;
	CUstream upload;
	void *error_node;
	int result; /* 0: it worked */
};

CUresult sim_cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, void *params)
{
	struct instantiate_params *p = params;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	p->error_node = NULL;
	p->result = 0;
	return sim_cuGraphInstantiateWithFlags(out, g, p->flags);
}

CUresult sim_cuGraphUpload(CUgraphExec g, CUstream handle)
{
	CUstream s;

	return g ? stream_resolve(handle, &s) : CUDA_ERROR_INVALID_VALUE;
}
