// SPDX-License-Identifier: Apache-2.0
/* The thread of one GPU: step, work out until when nothing can be seen to happen, sleep that long. */
#include "engine.h"

#define POLL_NS 100000ull
#define MAX_LOOKAHEAD 512
/*
 * A device reports an end when it happens; a timer of this host may be a tenth of a millisecond late, which a
 * waiting tenant would take for GPU time. So the last stretch before an end somebody waits for is not slept.
 */
#define SPIN_NS 120000ull

struct plan {
	uint64_t wake_ns;
	uint32_t sleep;
	struct sim_stream *stream; /* whose lookahead is set */
	bool is_awaited;           /* somebody waits for what ends at wake_ns */
};

static bool only_stream(const struct egpu *g)
{
	struct ectx *c = g->current;
	uint32_t used = streams_used(c);

	for (uint32_t i = 0; i < used; i++)
		if (i != g->stream && queue_head(&c->region->streams[i]))
			return false;
	return true;
}

/*
 * Kernel after kernel in the only busy stream of the running context: nobody can tell when each of
 * them ends unless somebody waits for it, so sleep through to the first end that matters.
 */
static uint64_t lookahead(const struct egpu *g, struct sim_stream *s)
{
	uint64_t seq = atomic_load_explicit(&s->done, memory_order_relaxed) + 1;
	uint64_t tail = atomic_load(&s->tail);
	uint64_t target = atomic_load(&s->wait_target);
	uint64_t end = g->cmd_end_ns;

	for (int i = 0; i < MAX_LOOKAHEAD && seq < tail; i++) {
		const struct sim_cmd *next = &s->ring[seq % SIM_RING];

		if ((target && target <= seq) || next->op != SIM_KERNEL)
			break;
		end += next->amount;
		seq++;
	}
	atomic_store(&s->lookahead, seq);
	return end;
}

static struct plan make_plan(struct egpu *g, uint64_t now_ns)
{
	struct plan p = {.wake_ns = SIM_NEVER, .sleep = SIM_ASLEEP};
	uint64_t beside = copy_next_ns(g);
	uint64_t slice_end;

	if (sample_next_ns(g) < beside)
		beside = sample_next_ns(g);
	if (g->needs_poll && now_ns + POLL_NS < beside)
		beside = now_ns + POLL_NS;
	if (g->phase == SIM_SWITCH) {
		p.sleep = SIM_SLICED + g->current->index;
		p.wake_ns = g->phase_end_ns;
	} else if (g->phase == SIM_EXEC) {
		slice_end = gpu_slice_end(g);
		p.wake_ns = g->cmd_end_ns;
		if (only_stream(g)) {
			p.stream = &g->current->region->streams[g->stream];
			p.wake_ns = lookahead(g, p.stream);
			p.is_awaited = atomic_load(&p.stream->wait_target) != 0;
		}
		if (slice_end != SIM_NEVER)
			p.sleep = SIM_SLICED + g->current->index;
		if (slice_end < p.wake_ns) {
			p.wake_ns = slice_end;
			p.is_awaited = false;
		}
	}
	if (beside < p.wake_ns) {
		p.wake_ns = beside;
		p.is_awaited = false;
	}
	return p;
}

/* Somebody came to wait for a command the plan sleeps through. */
static bool plan_is_stale(const struct plan *p)
{
	uint64_t target;

	if (!p->stream)
		return false;
	target = atomic_load(&p->stream->wait_target);
	return target && target < atomic_load(&p->stream->lookahead) &&
	       target > atomic_load(&p->stream->done);
}

/* Until the plan is due or the bell rings. */
static void sleep_through(struct egpu *g, const struct plan *p, uint32_t bell)
{
	struct sim_gpu *shm = g->shm;

	if (!p->is_awaited) {
		sim_futex_wait(&shm->bell, bell, p->wake_ns);
		return;
	}
	if (sim_now_ns() + SPIN_NS < p->wake_ns)
		sim_futex_wait(&shm->bell, bell, p->wake_ns - SPIN_NS);
	while (sim_now_ns() < p->wake_ns && sim_now_ns() + SPIN_NS >= p->wake_ns &&
	       atomic_load(&shm->bell) == bell)
		__builtin_ia32_pause();
}

/*
 * No submission is missed: the submitter moves its tail and then looks at `sleep`; this thread sets
 * `sleep` and then looks at the tails. The same order holds between waiters and `lookahead`.
 */
void *gpu_thread(void *gpu)
{
	struct egpu *g = gpu;
	struct sim_gpu *shm = g->shm;

	pthread_mutex_lock(&g->lock);
	while (!atomic_load(&shm->dead)) {
		uint32_t bell = atomic_load(&shm->bell);
		uint64_t sum, now;
		struct plan p;

		atomic_store(&shm->sleep, SIM_AWAKE);
		sum = tail_sum(g);
		now = sim_now_ns();
		gpu_step(g, now);
		p = make_plan(g, now);
		atomic_store(&shm->sleep, p.sleep);
		if (tail_sum(g) == sum && !plan_is_stale(&p)) {
			pthread_mutex_unlock(&g->lock);
			sleep_through(g, &p, bell);
			pthread_mutex_lock(&g->lock);
		}
		if (p.stream)
			atomic_store(&p.stream->lookahead, 0);
	}
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

/* The world changed behind the thread's back: let it plan anew. */
void gpu_kick(struct egpu *g)
{
	atomic_fetch_add(&g->shm->bell, 1);
	sim_futex_wake(&g->shm->bell);
}
