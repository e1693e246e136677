// SPDX-License-Identifier: Apache-2.0
/*
 * Submission and waiting. A submission is a write to the ring and, if the engine sleeps and the command
 * could change what it does next, one futex call: the doorbell. No ioctl, as on the hardware.
 */
#include "cuda_int.h"

#define SPIN_NS 20000ull
#define CHECK_NS 500000000ull

static struct sim_stream *ring_of(CUstream s)
{
	return &s->ctx->region->streams[s->index];
}

static void ring_bell(struct sim_gpu *shm, uint32_t seen)
{
	/* Whoever takes it from asleep to awake rings; the engine then looks at every ring. */
	if (!atomic_compare_exchange_strong(&shm->sleep, &seen, SIM_AWAKE))
		return;
	atomic_fetch_add(&shm->bell, 1);
	sim_futex_wake(&shm->bell);
}

/* `op` = 0: something else than a new command changed. */
void queue_ring(struct cu_ctx *c, uint32_t index, uint32_t op)
{
	struct sim_stream *r = &c->region->streams[index];
	uint32_t sleep;

	if (op && atomic_load(&r->done) + 1 < atomic_load(&r->tail))
		return; /* not at the head: it is seen when its predecessors are done */
	sleep = atomic_load(&c->shm->sleep);
	if (sleep == SIM_AWAKE)
		return;
	/* The engine wakes at the end of the slice at the latest, and no kernel of another context starts before. */
	if (op == SIM_KERNEL && sleep >= SIM_SLICED && sleep != SIM_SLICED + c->region_index)
		return;
	ring_bell(c->shm, sleep);
}

static bool make_room(CUstream s)
{
	struct sim_stream *r = ring_of(s);
	uint64_t tail = atomic_load(&r->tail);

	/* Sleep until a quarter is free, not one entry: a full queue costs a wake-up per quarter. */
	return queue_wait(s, tail - SIM_RING + SIM_RING / 4) == CUDA_SUCCESS;
}

CUresult queue_submit(CUstream s, const struct sim_cmd *cmd, uint64_t *seq)
{
	struct sim_stream *r = ring_of(s);
	struct sim_cmd *slot;
	uint64_t tail;

	if (!s->ctx->is_live)
		return CUDA_ERROR_INVALID_CONTEXT;
	pthread_mutex_lock(&s->lock);
	tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
	if (tail - atomic_load(&r->done) >= SIM_RING && !make_room(s)) {
		pthread_mutex_unlock(&s->lock);
		return CUDA_ERROR_DEINITIALIZED;
	}
	slot = &r->ring[tail % SIM_RING];
	*slot = *cmd;
	slot->order = atomic_fetch_add(&s->ctx->order, 1);
	slot->stamp_ns = sim_now_ns();
	atomic_store(&r->tail, tail + 1);
	queue_ring(s->ctx, s->index, cmd->op);
	pthread_mutex_unlock(&s->lock);
	if (seq)
		*seq = tail + 1;
	return CUDA_SUCCESS;
}

static void ask_to_be_woken(struct sim_stream *r, uint64_t seq)
{
	uint64_t target = atomic_load(&r->wait_target);

	while (!target || target > seq)
		if (atomic_compare_exchange_weak(&r->wait_target, &target, seq))
			break;
}

/* Wait until command `seq` of the stream (1 is the first) is done. */
CUresult queue_wait(CUstream s, uint64_t seq)
{
	struct sim_stream *r = ring_of(s);
	bool spins = (s->ctx->flags & 7) == 1;
	uint64_t spin_until = spins ? sim_now_ns() + SPIN_NS : 0;

	while (atomic_load(&r->done) < seq) {
		uint32_t word = atomic_load(&r->wake_word);
		uint64_t now;

		if (spin_until && sim_now_ns() < spin_until)
			continue;
		ask_to_be_woken(r, seq);
		if (atomic_load(&r->done) >= seq)
			break;
		if (seq < atomic_load(&r->lookahead))
			queue_ring(s->ctx, s->index, 0);
		now = sim_now_ns();
		sim_futex_wait(&r->wake_word, word, now + CHECK_NS);
		if (sim_now_ns() >= now + CHECK_NS && client_engine_gone(s->ctx))
			return CUDA_ERROR_DEINITIALIZED;
		if (atomic_load(&s->ctx->shm->dead) || !s->ctx->is_live)
			return CUDA_ERROR_DEINITIALIZED;
	}
	return CUDA_SUCCESS;
}

uint64_t queue_tail(CUstream s)
{
	return atomic_load(&ring_of(s)->tail);
}

uint64_t queue_done(CUstream s)
{
	return atomic_load(&ring_of(s)->done);
}
