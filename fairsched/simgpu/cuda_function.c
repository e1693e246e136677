// SPDX-License-Identifier: Apache-2.0
/*
 * What can be asked of a kernel: names, attributes, how many blocks fit on a multiprocessor. Nothing is known of the
 * code, so the attributes are those of a small kernel on an H100 that uses no shared memory, and can be set.
 */
#include "cuda_api.h"

#define SM_THREADS 2048
#define SM_BLOCKS 32
#define SM_SHARED_BYTES 233472u
#define BLOCK_RESERVED_BYTES 1024u
#define BLOCK_SHARED_BYTES 232448u
#define MAX_BLOCK_THREADS 1024
#define PORTABLE_CLUSTER 8

enum { /* CUfunction_attribute: those that can be set */
	FIRST_WRITABLE = 8,
	READ_ONLY_CLUSTER = 10,
};

typedef size_t (*shared_of_block)(int block_size);

CUresult sim_cuFuncGetAttribute(int *value, int attribute, CUfunction f)
{
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!value || attribute < 0 || attribute >= SIM_FUNCTION_ATTRIBUTES)
		return CUDA_ERROR_INVALID_VALUE;
	*value = f->attributes[attribute];
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncSetAttribute(CUfunction f, int attribute, int value)
{
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if (attribute < FIRST_WRITABLE || attribute >= SIM_FUNCTION_ATTRIBUTES ||
	    attribute == READ_ONLY_CLUSTER)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute == FIRST_WRITABLE && (value < 0 || (unsigned int)value > BLOCK_SHARED_BYTES))
		return CUDA_ERROR_INVALID_VALUE;
	f->attributes[attribute] = value;
	return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetAttribute(int *value, int attribute, CUfunction f, CUdevice dev)
{
	(void)dev;
	return sim_cuFuncGetAttribute(value, attribute, f);
}

CUresult sim_cuKernelSetAttribute(int attribute, int value, CUfunction f, CUdevice dev)
{
	(void)dev;
	return sim_cuFuncSetAttribute(f, attribute, value);
}

/* A wish about caches: taken and without effect, like the two below. */
CUresult sim_cuFuncSetCacheConfig(CUfunction f, int config)
{
	(void)config;
	return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_cuFuncSetSharedMemConfig(CUfunction f, int config)
{
	return sim_cuFuncSetCacheConfig(f, config);
}

CUresult sim_cuKernelSetCacheConfig(CUfunction f, int config, CUdevice dev)
{
	(void)dev;
	return sim_cuFuncSetCacheConfig(f, config);
}

CUresult sim_cuFuncGetName(const char **name, CUfunction f)
{
	if (!f || !name)
		return CUDA_ERROR_INVALID_VALUE;
	*name = f->name;
	return CUDA_SUCCESS;
}

CUresult sim_cuFuncGetModule(struct cu_module **out, CUfunction f)
{
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	*out = f->module;
	return CUDA_SUCCESS;
}

CUresult sim_cuKernelGetFunction(CUfunction *out, CUfunction f)
{
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	*out = f;
	return CUDA_SUCCESS;
}

/* Where the arguments of a kernel lie is written in a part of the image that is not documented. */
CUresult sim_cuFuncGetParamInfo(CUfunction f, size_t index, size_t *offset, size_t *bytes)
{
	(void)f, (void)index, (void)offset, (void)bytes;
	return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sim_cuFuncLoad(CUfunction f)
{
	return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sim_cuFuncIsLoaded(int *state, CUfunction f)
{
	*state = 1;
	return f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static int blocks_per_sm(int block_size, size_t shared)
{
	int by_threads = SM_THREADS / ((block_size + 31) / 32 * 32);
	int by_shared = (int)(SM_SHARED_BYTES / (shared + BLOCK_RESERVED_BYTES));
	int fewest = by_threads < by_shared ? by_threads : by_shared;

	return fewest < SM_BLOCKS ? fewest : SM_BLOCKS;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction f, int block_size,
								  size_t shared, unsigned int flags)
{
	(void)flags;
	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!blocks || block_size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = block_size > MAX_BLOCK_THREADS ? 0 : blocks_per_sm(block_size, shared);
	return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int block_size,
							 size_t shared)
{
	return sim_cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, block_size, shared, 0);
}

CUresult sim_cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction f,
						       shared_of_block of_block, size_t shared, int limit,
						       unsigned int flags)
{
	int best = 0, largest = limit > 0 && limit < MAX_BLOCK_THREADS ? limit : MAX_BLOCK_THREADS;
	CUcontext c;
	CUresult rc = need_context(&c);

	(void)flags;
	if (rc != CUDA_SUCCESS)
		return rc;
	if (!f || !grid || !block)
		return CUDA_ERROR_INVALID_VALUE;
	*grid = *block = 0;
	for (int size = largest; size > 0; size = size % 32 ? size / 32 * 32 : size - 32) {
		int blocks = blocks_per_sm(size, of_block ? of_block(size) : shared);

		if (blocks * size <= best)
			continue;
		best = blocks * size;
		*block = size;
		*grid = blocks * (int)c->shm->spec.sm_count;
	}
	return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction f, shared_of_block of_block,
					      size_t shared, int limit)
{
	return sim_cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, f, of_block, shared, limit, 0);
}

CUresult sim_cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction f, int blocks, int block_size)
{
	size_t each;

	if (!f)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!bytes || blocks <= 0 || block_size <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	each = SM_SHARED_BYTES / (size_t)blocks;
	*bytes = each > BLOCK_RESERVED_BYTES ? each - BLOCK_RESERVED_BYTES : 0;
	if (*bytes > BLOCK_SHARED_BYTES)
		*bytes = BLOCK_SHARED_BYTES;
	return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxPotentialClusterSize(int *size, CUfunction f, const void *config)
{
	if (!f || !config)
		return CUDA_ERROR_INVALID_VALUE;
	*size = PORTABLE_CLUSTER;
	return CUDA_SUCCESS;
}

CUresult sim_cuOccupancyMaxActiveClusters(int *clusters, CUfunction f, const void *config)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!f || !config)
		return CUDA_ERROR_INVALID_VALUE;
	*clusters = (int)c->shm->spec.sm_count / PORTABLE_CLUSTER;
	return CUDA_SUCCESS;
}
