// SPDX-License-Identifier: Apache-2.0
/*
 * The natures.
 *
 * Shares. Where m contexts run at once each gets 1/m of the time, yet accounts are whole nanoseconds and
 * must add up. So the nanoseconds are dealt in turn: since `share_from_ns`, when the set last changed, the
 * k-th went to seat k modulo m. The moment at which a seat has n of them is then a whole number too, and
 * events stay computed, whoever looks in between.
 */
#include "engine_nature.h"

#define MILLION 1000000ull

#define GOLDEN 0x9e3779b97f4a7c15ull

static uint64_t mixed(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* splitmix64: every GPU has its own sequence, the same in each run. */
static uint64_t next_random(struct egpu *g)
{
	return mixed(g->random_state += GOLDEN);
}

/* A place on a runlist is one that somebody left: any. */
uint64_t nature_place(const struct egpu *g, uint64_t number)
{
	return g->shm->spec.is_runlist_ordered ? number : mixed(number * GOLDEN);
}

uint64_t nature_slice_ns(struct egpu *g)
{
	const struct sim_spec *spec = &g->shm->spec;
	uint64_t parts = MILLION;
	uint64_t slice;

	if (g->current)
		parts = g->current->number % 2 ? parts + spec->slice_spread_ppm
					       : parts - spec->slice_spread_ppm;
	slice = spec->slice_ns * parts / MILLION;
	if (spec->slice_jitter_ppm) {
		parts = MILLION - spec->slice_jitter_ppm;
		parts += next_random(g) % (2ull * spec->slice_jitter_ppm + 1);
		slice = slice * parts / MILLION;
	}
	return slice > SIM_MIN_SLICE_NS ? slice : SIM_MIN_SLICE_NS;
}

void nature_extend_slice(struct egpu *g, uint64_t wanted_ns)
{
	uint64_t slice;

	if (g->slice_end_ns >= wanted_ns)
		return;
	if (g->shm->spec.slice_jitter_ppm) {
		while (g->slice_end_ns < wanted_ns)
			g->slice_end_ns += nature_slice_ns(g);
		return;
	}
	slice = nature_slice_ns(g);
	g->slice_end_ns += (wanted_ns - g->slice_end_ns + slice - 1) / slice * slice;
}

/* A graph is one command of many kernels, taken as equally long: it may stop between two of them. */
uint64_t nature_grace_ns(const struct egpu *g, struct ectx *c)
{
	const struct sim_cmd *cmd = queue_head(&c->region->streams[c->stream]);
	uint64_t done = kernel_ns(c, cmd) - c->left_ns;
	uint64_t kernel;

	if (!g->shm->spec.run_to_completion)
		return 0;
	if (cmd->count < 2 || kernel_ns(c, cmd) < cmd->count)
		return c->left_ns;
	kernel = kernel_ns(c, cmd) / cmd->count;
	kernel = (kernel - done % kernel) % kernel;
	return kernel < c->left_ns ? kernel : c->left_ns;
}

static uint64_t dealt_ns(const struct egpu *g, const struct ectx *c, uint64_t until_ns)
{
	uint64_t since = until_ns - g->share_from_ns;

	return since / g->running_count + (c->seat - 1 < since % g->running_count);
}

uint64_t nature_share_ns(const struct egpu *g, const struct ectx *c, uint64_t at_ns)
{
	return dealt_ns(g, c, at_ns) - dealt_ns(g, c, g->shm->charged_ns);
}

uint64_t nature_reached_ns(const struct egpu *g, const struct ectx *c, uint64_t own_ns)
{
	uint64_t total = dealt_ns(g, c, g->shm->charged_ns) + own_ns;

	if (!own_ns)
		return g->shm->charged_ns;
	return g->share_from_ns + (total - 1) * g->running_count + c->seat;
}
