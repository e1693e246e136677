// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated GPU: a discrete-event simulation that follows the clock.
 *
 * The contexts stand in a circle, each in some place, as channel groups stand on a hardware
 * runlist: one that becomes runnable keeps its place, it is not queued at the tail. A set of them runs:
 * one, or up to `overlap`. A context stays until it has nothing left, or until the slice is over and
 * somebody waits; then the whole set drains, at once where kernels can be interrupted, and the next set is
 * taken from the circle. Switching to another set costs switch_ns; joining one that runs costs nothing.
 * Inside a context the ready streams take turns, one command at a time.
 *
 * Event times are computed, never measured: a late wake-up goes through the missed events at the times
 * they had, so the accounts do not depend on how punctual this process is.
 */
#include <string.h>

#include "engine_nature.h"

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

static bool is_served(const struct egpu *g, const struct ectx *c)
{
	return c->seat || (g->phase == SIM_SWITCH && c == g->current);
}

/* Since when the context has been waiting, if it has. */
static uint64_t waiting_since_ns(struct ectx *c)
{
	uint64_t ready = context_ready_ns(c);

	return ready == SIM_NEVER ? ready : max_ns(ready, c->last_stop_ns);
}

static void charge(struct egpu *g, uint64_t at_ns)
{
	uint64_t spent = at_ns - g->shm->charged_ns;

	if (g->phase == SIM_SWITCH) {
		g->shm->switch_ns += spent;
		g->current->truth->switch_ns += spent;
	} else if (g->phase == SIM_EXEC) {
		g->shm->busy_ns += spent;
		for (uint32_t i = 0; i < g->running_count; i++) {
			struct ectx *c = g->running[i];
			uint64_t share = nature_share_ns(g, c, at_ns);

			c->truth->exec_ns += share;
			c->left_ns -= share;
			c->grace_ns -= g->is_draining ? share : 0;
		}
	}
	g->shm->charged_ns = at_ns;
}

/* Since when somebody is ready who does not run; a stamp may be older than what was done meanwhile. */
static uint64_t others_ready_ns(const struct egpu *g)
{
	uint64_t best = SIM_NEVER;

	for (struct ectx *c = g->contexts; c; c = c->next)
		if (!c->seat)
			best = min_ns(best, context_ready_ns(c));
	return best == SIM_NEVER ? best : max_ns(best, g->shm->charged_ns);
}

/* The first slice boundary at which somebody else wants the GPU; SIM_NEVER while nobody does. */
static uint64_t slice_end_ns(struct egpu *g)
{
	uint64_t wanted = others_ready_ns(g);

	if (wanted == SIM_NEVER)
		return SIM_NEVER;
	nature_extend_slice(g, wanted);
	return g->slice_end_ns;
}

/* When, if no command ends before, the set changes: somebody joins, must leave, or the slice is over. */
uint64_t gpu_turn_ns(struct egpu *g)
{
	uint64_t at = SIM_NEVER;

	if (!g->is_draining)
		return g->running_count < g->shm->spec.overlap ? others_ready_ns(g) : slice_end_ns(g);
	for (uint32_t i = 0; i < g->running_count; i++)
		at = min_ns(at, nature_reached_ns(g, g->running[i], g->running[i]->grace_ns));
	return at;
}

static uint64_t exec_next_ns(struct egpu *g)
{
	uint64_t at = gpu_turn_ns(g);

	for (uint32_t i = 0; i < g->running_count; i++)
		at = min_ns(at, nature_reached_ns(g, g->running[i], g->running[i]->left_ns));
	return at;
}

void accounts_close(struct egpu *g)
{
	struct sim_gpu *shm = g->shm;

	shm->phase = g->phase;
	shm->current_id = 0;
	shm->limit_ns = SIM_NEVER;
	if (g->phase == SIM_SWITCH) {
		shm->current_id = g->current->truth->id;
		shm->limit_ns = g->phase_end_ns;
	} else if (g->phase == SIM_EXEC) {
		shm->current_id = g->running[0]->truth->id;
		shm->limit_ns = exec_next_ns(g);
	}
	shm->share_from_ns = g->share_from_ns;
	shm->share_count = g->running_count;
	shm->copy_id = g->copy_ctx ? g->copy_ctx->truth->id : 0;
	shm->copy_end_ns = g->copy_ctx ? g->copy_end_ns : 0;
	for (struct ectx *c = g->contexts; c; c = c->next) {
		uint64_t since = is_served(g, c) ? SIM_NEVER : waiting_since_ns(c);

		c->truth->waiting_since_ns = since == SIM_NEVER ? 0 : since;
		c->truth->seat = c->seat;
	}
	atomic_fetch_add(&shm->lock_seq, 1);
}

static void note_residency(struct egpu *g, const struct ectx *c, uint64_t end_ns)
{
	struct sim_residency *r = &g->shm->residencies[g->shm->residency_count % SIM_MAX_RESIDENCIES];

	if (end_ns == c->joined_ns)
		return;
	r->id = c->truth->id;
	r->start_ns = c->joined_ns;
	r->end_ns = end_ns;
	g->shm->residency_count++;
}

/* The set has changed: deal the time anew. */
static void seat_anew(struct egpu *g, uint64_t at_ns)
{
	g->share_from_ns = at_ns;
	for (uint32_t i = 0; i < g->running_count; i++)
		g->running[i]->seat = i + 1;
}

/* Start (or go on with) a command of the context. False if none is ready. */
static bool run_head(struct ectx *c, uint64_t at_ns)
{
	uint32_t used = streams_used(c);

	if (c->stream != NO_STREAM)
		return true;
	for (uint32_t i = 1; i <= used; i++) {
		uint32_t stream = (c->last_stream + i) % used;

		if (stream_ready_ns(c, stream, SIM_KERNEL) > at_ns)
			continue;
		c->stream = stream;
		c->left_ns = kernel_ns(c, queue_head(&c->region->streams[stream]));
		return true;
	}
	return false;
}

static bool join(struct egpu *g, struct ectx *c, uint64_t at_ns)
{
	if (!run_head(c, at_ns)) {
		c->last_stop_ns = at_ns;
		return false;
	}
	c->joined_ns = at_ns;
	c->set = g->set;
	g->running[g->running_count++] = c;
	seat_anew(g, at_ns);
	return true;
}

static void leave(struct egpu *g, struct ectx *c, uint64_t at_ns)
{
	uint32_t i = c->seat - 1;

	note_residency(g, c, at_ns);
	c->last_stop_ns = at_ns;
	c->seat = 0;
	g->running_count--;
	memmove(&g->running[i], &g->running[i + 1], (g->running_count - i) * sizeof(g->running[0]));
	seat_anew(g, at_ns);
}

/* The next runnable context after the last one in the circle; the last one itself comes last. */
static struct ectx *pick(struct egpu *g, uint64_t at_ns)
{
	uint64_t from = g->last_place + 1; /* wraps: those before come after */
	struct ectx *best = NULL;

	for (struct ectx *c = g->contexts; c; c = c->next)
		if (!c->seat && context_ready_ns(c) <= at_ns &&
		    (!best || c->place - from < best->place - from))
			best = c;
	if (best) {
		best->truth->wait_ns += at_ns - waiting_since_ns(best);
		g->last_place = best->place;
	}
	return best;
}

static void fill_seats(struct egpu *g, uint64_t at_ns)
{
	while (g->running_count < g->shm->spec.overlap) {
		struct ectx *c = pick(g, at_ns);

		if (!c || !join(g, c, at_ns))
			return;
	}
}

static void begin_slice(struct egpu *g, uint64_t at_ns);

static void dispatch(struct egpu *g, uint64_t at_ns)
{
	struct ectx *c = pick(g, at_ns);

	if (!c) {
		g->phase = SIM_IDLE;
		return;
	}
	g->current = c;
	if (c->set == g->set) {
		begin_slice(g, at_ns);
		return;
	}
	c->set = ++g->set;
	g->shm->switches++;
	g->phase = SIM_SWITCH;
	g->phase_end_ns = at_ns + g->shm->spec.switch_ns;
}

static void begin_slice(struct egpu *g, uint64_t at_ns)
{
	g->phase = SIM_EXEC;
	g->slice_end_ns = at_ns + nature_slice_ns(g);
	if (join(g, g->current, at_ns))
		fill_seats(g, at_ns);
	else
		dispatch(g, at_ns);
}

/* Nobody runs any more. After a full slice it is the turn of others, whose set it is a cost to load. */
static void next_set(struct egpu *g, uint64_t at_ns)
{
	g->set += g->is_draining;
	g->is_draining = false;
	dispatch(g, at_ns);
}

static void finish_command(struct ectx *c, uint64_t at_ns)
{
	c->truth->kernels += queue_head(&c->region->streams[c->stream])->count;
	c->last_stream = c->stream;
	queue_complete(c, c->stream, at_ns);
	c->stream = NO_STREAM;
}

static void begin_draining(struct egpu *g)
{
	g->is_draining = true;
	for (uint32_t i = 0; i < g->running_count; i++)
		if (g->running[i]->stream != NO_STREAM)
			g->running[i]->grace_ns = nature_grace_ns(g, g->running[i]);
}

static bool may_stay(const struct egpu *g, struct ectx *c, uint64_t at_ns)
{
	if (g->is_draining)
		return c->stream != NO_STREAM && c->grace_ns;
	return run_head(c, at_ns);
}

static void exec_advance(struct egpu *g, uint64_t at_ns)
{
	struct ectx *set[SIM_MAX_OVERLAP];
	uint32_t count = g->running_count;
	bool has_finished = false;

	memcpy(set, g->running, sizeof(set));
	for (uint32_t i = 0; i < count; i++) {
		if (set[i]->left_ns)
			continue;
		finish_command(set[i], at_ns);
		has_finished = true;
	}
	if (has_finished)
		settle(g);
	if (!g->is_draining && count == g->shm->spec.overlap && at_ns >= slice_end_ns(g))
		begin_draining(g);
	for (uint32_t i = 0; i < count; i++)
		if (!may_stay(g, set[i], at_ns))
			leave(g, set[i], at_ns);
	if (!g->running_count)
		next_set(g, at_ns);
	else if (!g->is_draining)
		fill_seats(g, at_ns);
}

static uint64_t compute_next_ns(struct egpu *g)
{
	if (g->phase == SIM_SWITCH)
		return g->phase_end_ns;
	return g->phase == SIM_EXEC ? exec_next_ns(g) : others_ready_ns(g);
}

static void compute_advance(struct egpu *g, uint64_t at_ns)
{
	charge(g, at_ns);
	if (g->phase == SIM_IDLE)
		dispatch(g, at_ns);
	else if (g->phase == SIM_SWITCH) {
		turns_switched(g, at_ns);
		begin_slice(g, at_ns);
	} else
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
	bool was_running = c->seat != 0;
	bool was_switched_to = is_served(g, c) && !was_running;
	uint64_t since = waiting_since_ns(c);

	accounts_open(g);
	if (was_running || was_switched_to)
		charge(g, now_ns);
	else if (since != SIM_NEVER && now_ns > since)
		c->truth->wait_ns += now_ns - since;
	if (was_running)
		leave(g, c, now_ns);
	copy_forget(g, c, now_ns);
	turns_drop(g, c, now_ns);
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	c->truth->ended_ns = now_ns;
	c->truth->booked_until = g->shm->booked_samples;
	c->truth->waiting_since_ns = 0;
	c->truth->seat = 0;
	g->shm->vram_used_bytes -= c->truth->vram_bytes;
	c->truth->vram_bytes = 0;
	if (g->current == c)
		g->current = NULL;
	if (was_switched_to || (was_running && !g->running_count))
		next_set(g, now_ns);
	accounts_close(g);
}
