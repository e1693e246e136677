// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated GPU: a discrete-event simulation that follows the clock.
 *
 * The contexts stand in a circle, in order of creation, as channel groups stand on a hardware
 * runlist: one that becomes runnable keeps its place, it is not queued at the tail. The current one
 * runs until its slice is over and somebody else is runnable, or until it has nothing left. Moving to
 * another context costs switch_ns; a kernel is preempted wherever it is. Inside a slice the ready
 * streams take turns, one command at a time.
 *
 * Event times are computed, never measured: a late wake-up goes through the missed events at the times
 * they had, so the accounts do not depend on how punctual this process is.
 */
#include "engine.h"

static uint64_t max_ns(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t min_ns(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void accounts_open(struct egpu *g)
{
	atomic_fetch_add(&g->shm->lock_seq, 1);
}

void accounts_close(struct egpu *g)
{
	struct sim_gpu *shm = g->shm;

	shm->phase = g->phase;
	shm->current_id = g->phase == SIM_IDLE ? 0 : g->current->truth->id;
	shm->limit_ns = SIM_NEVER;
	if (g->phase == SIM_SWITCH)
		shm->limit_ns = g->phase_end_ns;
	else if (g->phase == SIM_EXEC)
		shm->limit_ns = min_ns(g->cmd_end_ns, gpu_slice_end(g));
	shm->copy_id = g->copy_ctx ? g->copy_ctx->truth->id : 0;
	shm->copy_end_ns = g->copy_ctx ? g->copy_end_ns : 0;
	for (struct ectx *c = g->contexts; c; c = c->next) {
		uint64_t ready = SIM_NEVER;

		if (g->phase == SIM_IDLE || c != g->current)
			ready = context_ready_ns(c);
		c->truth->waiting_since_ns = ready == SIM_NEVER ? 0 : max_ns(ready, c->last_stop_ns);
	}
	atomic_fetch_add(&shm->lock_seq, 1);
}

static void charge(struct egpu *g, uint64_t at_ns)
{
	uint64_t spent = at_ns - g->shm->charged_ns;

	if (g->phase == SIM_EXEC) {
		g->shm->busy_ns += spent;
		g->current->truth->exec_ns += spent;
	} else if (g->phase == SIM_SWITCH) {
		g->shm->switch_ns += spent;
		g->current->truth->switch_ns += spent;
	}
	g->shm->charged_ns = at_ns;
}

static uint64_t others_ready_ns(const struct egpu *g)
{
	uint64_t best = SIM_NEVER;

	for (struct ectx *c = g->contexts; c; c = c->next)
		if (c != g->current)
			best = min_ns(best, context_ready_ns(c));
	return best;
}

/* The first slice boundary at which somebody else wants the GPU; SIM_NEVER while nobody does. */
uint64_t gpu_slice_end(const struct egpu *g)
{
	uint64_t slice = g->shm->spec.slice_ns;
	uint64_t wanted = others_ready_ns(g);
	uint64_t slices = 1;

	if (wanted == SIM_NEVER)
		return SIM_NEVER;
	if (wanted > g->slice_start_ns)
		slices = max_ns(1, (wanted - g->slice_start_ns + slice - 1) / slice);
	return g->slice_start_ns + slices * slice;
}

static void note_residency(struct egpu *g, uint64_t end_ns)
{
	struct sim_residency *r = &g->shm->residencies[g->shm->residency_count % SIM_MAX_RESIDENCIES];

	if (end_ns == g->exec_start_ns)
		return;
	r->id = g->current->truth->id;
	r->start_ns = g->exec_start_ns;
	r->end_ns = end_ns;
	g->shm->residency_count++;
}

/* Start (or go on with) a command of the current context. False if none is ready. */
static bool run_head(struct egpu *g, uint64_t at_ns)
{
	struct ectx *c = g->current;
	uint32_t used = streams_used(c);

	if (c->begun_stream != NO_STREAM) {
		g->stream = c->begun_stream;
		g->cmd_end_ns = at_ns + c->left_ns;
		c->begun_stream = NO_STREAM;
		return true;
	}
	for (uint32_t i = 1; i <= used; i++) {
		uint32_t stream = (c->last_stream + i) % used;

		if (stream_ready_ns(c, stream, SIM_KERNEL) > at_ns)
			continue;
		g->stream = stream;
		g->cmd_end_ns = at_ns + queue_head(&c->region->streams[stream])->amount;
		return true;
	}
	return false;
}

/* The next runnable context after the last one in the circle; the last one itself comes last. */
static struct ectx *pick(struct egpu *g, uint64_t at_ns, uint64_t *ready_ns)
{
	struct ectx *best = NULL;
	uint64_t best_distance = 0;

	for (struct ectx *c = g->contexts; c; c = c->next) {
		uint64_t distance = c->place - g->last_place - 1; /* wraps: those before come after */
		uint64_t ready = context_ready_ns(c);

		if (ready > at_ns || (best && distance >= best_distance))
			continue;
		best = c;
		best_distance = distance;
		*ready_ns = ready;
	}
	return best;
}

static void begin_slice(struct egpu *g, uint64_t at_ns);

static void dispatch(struct egpu *g, uint64_t at_ns)
{
	uint64_t ready = 0;
	struct ectx *c = pick(g, at_ns, &ready);

	if (!c) {
		g->phase = SIM_IDLE;
		return;
	}
	c->truth->wait_ns += at_ns - max_ns(ready, c->last_stop_ns);
	g->last_place = c->place;
	if (c == g->current) {
		begin_slice(g, at_ns);
		return;
	}
	g->current = c;
	g->shm->switches++;
	g->phase = SIM_SWITCH;
	g->phase_end_ns = at_ns + g->shm->spec.switch_ns;
}

static void begin_slice(struct egpu *g, uint64_t at_ns)
{
	g->phase = SIM_EXEC;
	g->slice_start_ns = at_ns;
	g->exec_start_ns = at_ns;
	if (!run_head(g, at_ns)) {
		g->current->last_stop_ns = at_ns;
		dispatch(g, at_ns);
	}
}

static void stop_current(struct egpu *g, uint64_t at_ns)
{
	note_residency(g, at_ns);
	g->current->last_stop_ns = at_ns;
}

static void finish_command(struct egpu *g, uint64_t at_ns)
{
	struct ectx *c = g->current;

	c->truth->kernels += queue_head(&c->region->streams[g->stream])->count;
	c->last_stream = g->stream;
	queue_complete(c, g->stream, at_ns);
	settle(g);
}

static void exec_advance(struct egpu *g, uint64_t at_ns)
{
	struct ectx *c = g->current;
	bool finished = at_ns >= g->cmd_end_ns;

	if (finished)
		finish_command(g, at_ns);
	if (at_ns < gpu_slice_end(g)) {
		if (!finished || run_head(g, at_ns))
			return;
	} else if (!finished) {
		c->begun_stream = g->stream;
		c->left_ns = g->cmd_end_ns - at_ns;
	}
	stop_current(g, at_ns);
	dispatch(g, at_ns);
}

static uint64_t compute_next_ns(struct egpu *g)
{
	uint64_t at;

	if (g->phase == SIM_SWITCH)
		return g->phase_end_ns;
	if (g->phase == SIM_EXEC)
		return min_ns(g->cmd_end_ns, gpu_slice_end(g));
	at = others_ready_ns(g);
	if (g->current)
		at = min_ns(at, context_ready_ns(g->current));
	return at == SIM_NEVER ? at : max_ns(at, g->shm->charged_ns);
}

static void compute_advance(struct egpu *g, uint64_t at_ns)
{
	charge(g, at_ns);
	if (g->phase == SIM_IDLE)
		dispatch(g, at_ns);
	else if (g->phase == SIM_SWITCH)
		begin_slice(g, at_ns);
	else
		exec_advance(g, at_ns);
}

/* Bring the simulation up to now. */
void gpu_step(struct egpu *g, uint64_t now_ns)
{
	accounts_open(g);
	for (;;) {
		uint64_t compute, copy, sample;

		settle(g);
		compute = compute_next_ns(g);
		copy = copy_next_ns(g);
		sample = sample_next_ns(g);
		if (min_ns(compute, min_ns(copy, sample)) > now_ns)
			break;
		if (sample <= min_ns(compute, copy))
			sample_take(g, sample);
		else if (copy <= compute)
			copy_advance(g, copy);
		else
			compute_advance(g, compute);
	}
	accounts_close(g);
}

/* Account for the part of the phase in progress as well. */
void gpu_charge_to(struct egpu *g, uint64_t now_ns)
{
	accounts_open(g);
	if (g->phase != SIM_IDLE && now_ns > g->shm->charged_ns)
		charge(g, now_ns);
	accounts_close(g);
}

/* The context is no more: what it had queued is dropped, what it used stays on record. */
void gpu_drop_context(struct egpu *g, struct ectx *c, uint64_t now_ns)
{
	struct ectx **link = &g->contexts;
	bool was_running = g->current == c && g->phase != SIM_IDLE;
	uint64_t ready = context_ready_ns(c);

	accounts_open(g);
	if (was_running) {
		charge(g, now_ns);
		if (g->phase == SIM_EXEC)
			note_residency(g, now_ns);
	} else if (ready != SIM_NEVER && now_ns > max_ns(ready, c->last_stop_ns)) {
		c->truth->wait_ns += now_ns - max_ns(ready, c->last_stop_ns);
	}
	copy_forget(g, c, now_ns);
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	c->truth->ended_ns = now_ns;
	c->truth->waiting_since_ns = 0;
	g->shm->vram_used_bytes -= c->truth->vram_bytes;
	c->truth->vram_bytes = 0;
	if (g->current == c)
		g->current = NULL;
	if (was_running)
		dispatch(g, now_ns);
	accounts_close(g);
}
