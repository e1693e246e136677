// SPDX-License-Identifier: Apache-2.0
/*
 * Host functions and callbacks run on a thread of the owner, so a frozen owner stalls its stream; memory operations
 * on pinned memory are the engine's own and do not.
 */
#include <stdlib.h>

#include "cuda_api.h"

struct memory_op { /* CUstreamBatchMemOpParams: a union of 48 bytes */
	unsigned int operation;
	uint64_t address;
	uint64_t value;
	unsigned int flags;
	uint64_t alias;
	uint64_t pad;
};

enum {
	OP_WAIT_32 = 1,
	OP_WRITE_32 = 2,
	OP_WAIT_64 = 4,
	OP_WRITE_64 = 5
};

static bool run_ready(struct cu_ctx *c)
{
	uint32_t used = atomic_load(&c->region->used_streams);
	bool ran = false;

	for (uint32_t i = 0; i < used && c->is_live; i++) {
		struct sim_stream *r = &c->region->streams[i];
		uint64_t seq = atomic_load(&r->host_ready);
		const struct sim_cmd *cmd = &r->ring[(seq - 1) % SIM_RING];

		if (seq <= atomic_load(&r->host_done))
			continue;
		((CUhostFn)(uintptr_t)cmd->user[0])((void *)(uintptr_t)cmd->user[1]);
		atomic_store(&r->host_done, seq);
		queue_ring(c, i, 0);
		ran = true;
	}
	return ran;
}

static void *host_thread(void *ctx)
{
	struct cu_ctx *c = ctx;

	while (c->is_live) {
		uint32_t word = atomic_load(&c->region->host_word);

		if (!run_ready(c) && c->is_live)
			sim_futex_wait(&c->region->host_word, word, SIM_NEVER);
	}
	return NULL;
}

void host_thread_start(struct cu_ctx *c)
{
	pthread_t thread;

	pthread_mutex_lock(&c->lock);
	if (!c->has_host_thread && !pthread_create(&thread, NULL, host_thread, c)) {
		pthread_detach(thread);
		c->has_host_thread = true;
	}
	pthread_mutex_unlock(&c->lock);
}

static CUresult submit_memory_op(CUstream s, uint32_t op, uint64_t address, uint64_t value, uint32_t compare)
{
	struct sim_cmd cmd = {.op = op, .amount = value, .seq = compare};
	int64_t offset = pinned_offset(s->ctx, address);

	/* Device memory has no contents here: a write to it is only a point in the queue. */
	if (offset < 0 && address >= SIM_DEVICE_LIMIT)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (offset < 0)
		cmd.op = SIM_MARK;
	else
		cmd.target = (uint64_t)offset;
	return queue_submit(s, &cmd, NULL);
}

CUresult sim_cuStreamWaitValue32(CUstream handle, uint64_t address, uint32_t value, unsigned int flags)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	return rc == CUDA_SUCCESS ? submit_memory_op(s, SIM_WAIT32, address, value, flags & 3) : rc;
}

CUresult sim_cuStreamWriteValue32(CUstream handle, uint64_t address, uint32_t value, unsigned int flags)
{
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	(void)flags;
	return rc == CUDA_SUCCESS ? submit_memory_op(s, SIM_WRITE32, address, value, 0) : rc;
}

CUresult sim_cuStreamBatchMemOp(CUstream handle, unsigned int count, const void *params, unsigned int flags)
{
	const struct memory_op *ops = params;
	CUresult rc = CUDA_SUCCESS;

	(void)flags;
	_Static_assert(sizeof(struct memory_op) == 48, "CUstreamBatchMemOpParams");
	for (unsigned int i = 0; i < count && rc == CUDA_SUCCESS; i++) {
		uint32_t value = (uint32_t)ops[i].value;

		if (ops[i].operation == OP_WAIT_32)
			rc = sim_cuStreamWaitValue32(handle, ops[i].address, value, ops[i].flags);
		else if (ops[i].operation == OP_WRITE_32)
			rc = sim_cuStreamWriteValue32(handle, ops[i].address, value, 0);
		else if (ops[i].operation == OP_WAIT_64 || ops[i].operation == OP_WRITE_64)
			rc = CUDA_ERROR_NOT_SUPPORTED;
	}
	return rc;
}

struct callback {
	CUstreamFn fn;
	CUstream stream;
	void *user;
};

static void run_callback(void *pointer)
{
	struct callback c = *(struct callback *)pointer;

	free(pointer);
	c.fn(c.stream, CUDA_SUCCESS, c.user);
}

CUresult sim_cuStreamAddCallback(CUstream handle, CUstreamFn fn, void *user, unsigned int flags)
{
	struct callback *c;
	CUstream s;
	CUresult rc = stream_resolve(handle, &s);

	(void)flags;
	if (rc != CUDA_SUCCESS)
		return rc;
	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	if (s->capture) /* as documented: it cannot be recorded */
		return CUDA_ERROR_NOT_SUPPORTED;
	c = malloc(sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = (struct callback){fn, handle, user};
	rc = sim_cuLaunchHostFunc(handle, run_callback, c);
	if (rc != CUDA_SUCCESS)
		free(c);
	return rc;
}
