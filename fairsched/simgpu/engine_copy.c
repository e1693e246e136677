// SPDX-License-Identifier: Apache-2.0
/* The copy engine (one per GPU, first ready first served, beside the compute engine) and the samples. */
#include "engine.h"

static uint64_t max_ns(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static uint64_t next_copy(const struct egpu *g, struct ectx **ctx, uint32_t *stream)
{
	uint64_t best = SIM_NEVER;

	for (struct ectx *c = g->contexts; c; c = c->next) {
		uint32_t used = streams_used(c);

		for (uint32_t i = 0; i < used; i++) {
			uint64_t at = stream_ready_ns(c, i, SIM_COPY);

			if (at >= best)
				continue;
			best = at;
			*ctx = c;
			*stream = i;
		}
	}
	return best;
}

uint64_t copy_next_ns(const struct egpu *g)
{
	struct ectx *c;
	uint32_t stream;
	uint64_t at;

	if (g->copy_ctx)
		return g->copy_end_ns;
	at = next_copy(g, &c, &stream);
	return at == SIM_NEVER ? at : max_ns(at, g->copy_free_ns);
}

static void copy_charge(struct egpu *g, uint64_t until_ns)
{
	uint64_t spent = until_ns - g->shm->copy_from_ns;

	g->shm->copy_ns += spent;
	g->copy_ctx->truth->copy_ns += spent;
	g->copy_free_ns = until_ns;
}

static void copy_begin(struct egpu *g, uint64_t at_ns)
{
	const struct sim_spec *spec = &g->shm->spec;
	uint64_t bytes;

	next_copy(g, &g->copy_ctx, &g->copy_stream);
	bytes = queue_head(&g->copy_ctx->region->streams[g->copy_stream])->amount;
	g->shm->copy_from_ns = at_ns;
	g->copy_end_ns = at_ns + spec->copy_latency_ns +
			 (uint64_t)((double)bytes * 1e9 / (double)spec->copy_bytes_per_s);
}

void copy_advance(struct egpu *g, uint64_t at_ns)
{
	if (!g->copy_ctx) {
		copy_begin(g, at_ns);
		return;
	}
	copy_charge(g, at_ns);
	queue_complete(g->copy_ctx, g->copy_stream, at_ns);
	g->copy_ctx = NULL;
}

void copy_forget(struct egpu *g, struct ectx *c, uint64_t now_ns)
{
	if (g->copy_ctx != c)
		return;
	copy_charge(g, now_ns);
	g->copy_ctx = NULL;
}

/*
 * What NVML knows: one occupant per 139 ms, and the busy part of that window whoever it was for;
 * the utilization rate over the last sixth of a second.
 */
uint64_t sample_next_ns(const struct egpu *g)
{
	return g->next_sample_ns < g->next_util_ns ? g->next_sample_ns : g->next_util_ns;
}

static uint64_t busy_until(const struct egpu *g, uint64_t at_ns)
{
	uint64_t busy = g->shm->busy_ns;

	if (g->phase == SIM_EXEC && at_ns > g->shm->charged_ns)
		busy += at_ns - g->shm->charged_ns;
	return busy;
}

/*
 * A sample names one process; of several that run at once each is named in turn. The GPU always has a context loaded: in
 * a switch it is the next one's.
 */
static struct ectx *occupant_of(const struct egpu *g)
{
	if (g->phase == SIM_SWITCH)
		return g->current;
	if (g->phase != SIM_EXEC)
		return NULL;
	return g->running[g->shm->sample_count % g->running_count];
}

/*
 * The accounting mode of NVML looks once a second at the samples that came since, and books them to processes that are
 * there then: what one did after the last look before its end is in no account.
 */
static void book_samples(struct egpu *g)
{
	struct sim_gpu *shm = g->shm;
	uint64_t contexts = shm->truth_count < SIM_MAX_TRUTHS ? shm->truth_count : SIM_MAX_TRUTHS;

	for (uint64_t i = 0; i < contexts; i++)
		if (!shm->truths[i].ended_ns)
			shm->truths[i].booked_util_pct_sum = shm->truths[i].sample_util_pct_sum;
	shm->booked_samples = shm->sample_count;
	g->next_booking_ns += SIM_ACCOUNTING_NS;
}

void sample_take(struct egpu *g, uint64_t at_ns)
{
	uint64_t busy = busy_until(g, at_ns);
	struct sim_sample *s = &g->shm->samples[g->shm->sample_count % SIM_MAX_SAMPLES];
	struct ectx *occupant;

	if (at_ns == g->next_util_ns) {
		g->shm->util_pct = (busy - g->util_busy_ns) * 100 / SIM_UTIL_NS;
		g->util_busy_ns = busy;
		g->next_util_ns += SIM_UTIL_NS;
		return;
	}
	s->time_us = (at_ns + g->shm->boot_realtime_offset_ns) / 1000;
	occupant = occupant_of(g);
	s->pid = occupant ? occupant->truth->pid : 0;
	s->util_pct = (uint32_t)((busy - g->sample_busy_ns) * 100 / SIM_SAMPLE_NS);
	if (occupant) {
		occupant->truth->sample_count++;
		occupant->truth->sample_util_pct_sum += s->util_pct;
	}
	g->sample_busy_ns = busy;
	g->shm->sample_count++;
	g->next_sample_ns += SIM_SAMPLE_NS;
	if (at_ns >= g->next_booking_ns)
		book_samples(g);
}
