// SPDX-License-Identifier: Apache-2.0
/* The thread of one GPU: step, work out until when nothing can be seen to happen, sleep that long. */
#include "engine_nature.h"

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
	struct sim_stream *streams[SIM_MAX_OVERLAP]; /* whose lookahead is set */
	uint32_t stream_count;
	bool is_awaited; /* somebody waits for what ends at wake_ns */
};

static bool only_stream(const struct ectx *c)
{
	uint32_t used = streams_used(c);

	for (uint32_t i = 0; i < used; i++)
		if (i != c->stream && queue_head(&c->region->streams[i]))
			return false;
	return true;
}

/*
 * Kernel after kernel in the only busy stream of a running context: nobody can tell when each of
 * them ends unless somebody waits for it, so sleep through to the first end that matters. Returns how
 * long the context needs for that.
 */
static uint64_t lookahead(const struct ectx *c, struct sim_stream *s)
{
	uint64_t seq = atomic_load_explicit(&s->done, memory_order_relaxed) + 1;
	uint64_t tail = atomic_load(&s->tail);
	uint64_t target = atomic_load(&s->wait_target);
	uint64_t needs = c->left_ns;

	for (int i = 0; i < MAX_LOOKAHEAD && seq < tail; i++) {
		const struct sim_cmd *next = &s->ring[seq % SIM_RING];

		if ((target && target <= seq) || next->op != SIM_KERNEL)
			break;
		needs += kernel_ns(c, next);
		seq++;
	}
	atomic_store(&s->lookahead, seq);
	return needs;
}

static void wake_by(struct plan *p, uint64_t at_ns, bool is_awaited)
{
	if (at_ns >= p->wake_ns)
		return;
	p->wake_ns = at_ns;
	p->is_awaited = is_awaited;
}

static void plan_exec(struct egpu *g, struct plan *p)
{
	for (uint32_t i = 0; i < g->running_count; i++) {
		struct ectx *c = g->running[i];
		struct sim_stream *s = &c->region->streams[c->stream];

		if (!only_stream(c)) {
			wake_by(p, nature_reached_ns(g, c, c->left_ns), false);
			continue;
		}
		p->streams[p->stream_count++] = s;
		wake_by(p, nature_reached_ns(g, c, lookahead(c, s)), atomic_load(&s->wait_target) != 0);
	}
	wake_by(p, gpu_turn_ns(g), false);
}

static struct plan make_plan(struct egpu *g, uint64_t now_ns)
{
	struct plan p = {.wake_ns = SIM_NEVER, .sleep = SIM_ASLEEP};

	if (g->phase == SIM_SWITCH) {
		p.sleep = SIM_SLICED + g->current->index;
		p.wake_ns = g->phase_end_ns;
	} else if (g->phase == SIM_EXEC) {
		plan_exec(g, &p);
		/* Where several run at once a newcomer may join them now. */
		if (g->shm->spec.overlap == 1 && gpu_turn_ns(g) != SIM_NEVER)
			p.sleep = SIM_SLICED + g->running[0]->index;
	}
	wake_by(&p, copy_next_ns(g), false);
	wake_by(&p, sample_next_ns(g), false);
	if (g->needs_poll)
		wake_by(&p, now_ns + POLL_NS, false);
	return p;
}

/* Somebody came to wait for a command the plan sleeps through. */
static bool plan_is_stale(const struct plan *p)
{
	for (uint32_t i = 0; i < p->stream_count; i++) {
		struct sim_stream *s = p->streams[i];
		uint64_t target = atomic_load(&s->wait_target);

		if (target && target < atomic_load(&s->lookahead) && target > atomic_load(&s->done))
			return true;
	}
	return false;
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
		for (uint32_t i = 0; i < p.stream_count; i++)
			atomic_store(&p.streams[i]->lookahead, 0);
	}
	pthread_mutex_unlock(&g->lock);
	return NULL;
}

/* False: there can be no more threads. Only the thread that serves clients, and the one before it, start any. */
bool gpu_start(struct egpu *g)
{
	if (!g->is_started)
		g->is_started = !pthread_create(&g->thread, NULL, gpu_thread, g);
	return g->is_started;
}

/* The world changed behind the thread's back: let it plan anew. */
void gpu_kick(struct egpu *g)
{
	atomic_fetch_add(&g->shm->bell, 1);
	sim_futex_wake(&g->shm->bell);
}
