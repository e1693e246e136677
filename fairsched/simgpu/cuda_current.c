// SPDX-License-Identifier: Apache-2.0
/* The stack of current contexts that each thread has. */
#include <stddef.h>

#include "cuda_int.h"

#define STACK_DEPTH 32

static __thread struct {
	CUcontext stack[STACK_DEPTH];
	int depth;
} thread_contexts;

CUcontext current_context(void)
{
	return thread_contexts.depth ? thread_contexts.stack[thread_contexts.depth - 1] : NULL;
}

CUresult push_context(CUcontext c)
{
	if (thread_contexts.depth == STACK_DEPTH)
		return CUDA_ERROR_UNKNOWN;
	thread_contexts.stack[thread_contexts.depth++] = c;
	return CUDA_SUCCESS;
}

void pop_context(void)
{
	if (thread_contexts.depth)
		thread_contexts.depth--;
}

void forget_contexts(void)
{
	thread_contexts.depth = 0;
}
