// SPDX-License-Identifier: Apache-2.0
/* Reading the engine's accounts under its seqlock, summed by process. */
#include <stdlib.h>
#include <string.h>

#include "nvml_int.h"

static bool read_begin(const struct sim_gpu *shm, uint32_t *seq)
{
	*seq = atomic_load(&((struct sim_gpu *)shm)->lock_seq);
	return !(*seq & 1);
}

static bool read_was_clean(const struct sim_gpu *shm, uint32_t seq)
{
	atomic_thread_fence(memory_order_seq_cst);
	return atomic_load(&((struct sim_gpu *)shm)->lock_seq) == seq;
}

static struct process_use *find_process(struct process_use *table, unsigned int *count, unsigned int max,
					uint32_t pid)
{
	for (unsigned int i = 0; i < *count; i++)
		if (table[i].pid == pid)
			return &table[i];
	if (*count == max)
		return NULL;
	memset(&table[*count], 0, sizeof(*table));
	table[*count].pid = pid;
	return &table[(*count)++];
}

static void add_context(struct process_use *p, const struct sim_truth *t)
{
	if (!p->created_ns || t->created_ns < p->created_ns) {
		p->created_ns = t->created_ns;
		p->booked_from = t->booked_from;
		p->wall_start_us = t->wall_start_us;
	}
	p->is_running |= !t->ended_ns;
	p->is_mps_client |= t->is_mps_client;
	if (t->ended_ns > p->ended_ns)
		p->ended_ns = t->ended_ns;
	p->vram_bytes += t->vram_bytes;
	p->peak_vram_bytes += t->peak_vram_bytes;
	p->sample_count += t->sample_count;
	p->sample_util_pct_sum += t->sample_util_pct_sum;
	p->booked_util_pct_sum += t->booked_util_pct_sum;
	if (t->booked_until > p->booked_until)
		p->booked_until = t->booked_until;
}

unsigned int read_processes(const struct sim_gpu *shm, struct process_use *out, unsigned int max,
			    bool only_running)
{
	unsigned int count = 0;
	uint32_t seq;

	do {
		uint64_t contexts;

		count = 0;
		while (!read_begin(shm, &seq))
			;
		contexts = shm->truth_count < SIM_MAX_TRUTHS ? shm->truth_count : SIM_MAX_TRUTHS;
		for (uint64_t i = 0; i < contexts; i++) {
			const struct sim_truth *t = &shm->truths[i];
			struct process_use *p = NULL;

			if (t->id && !(only_running && t->ended_ns))
				p = find_process(out, &count, max, t->pid);
			if (p)
				add_context(p, t);
		}
	} while (!read_was_clean(shm, seq));
	return count;
}

/* The samples taken after `after_us`, oldest first; `out` holds SIM_MAX_SAMPLES. */
static unsigned int read_samples(const struct sim_gpu *shm, struct sim_sample *out, uint64_t after_us)
{
	unsigned int count;
	uint32_t seq;

	do {
		uint64_t total, first;

		count = 0;
		while (!read_begin(shm, &seq))
			;
		total = shm->sample_count;
		first = total > SIM_MAX_SAMPLES ? total - SIM_MAX_SAMPLES : 0;
		for (uint64_t n = first; n < total; n++) {
			const struct sim_sample *s = &shm->samples[n % SIM_MAX_SAMPLES];

			if (s->time_us > after_us)
				out[count++] = *s;
		}
	} while (!read_was_clean(shm, seq));
	return count;
}

/* Keeps those with an occupant. */
static unsigned int each_sample(struct sim_sample *samples, unsigned int count)
{
	unsigned int kept = 0;

	for (unsigned int i = 0; i < count; i++)
		if (samples[i].pid)
			samples[kept++] = samples[i];
	return kept;
}

/* One entry for each process: the mean over all samples, 0 in those of others, and its latest moment. */
static unsigned int averaged(struct sim_sample *samples, unsigned int count)
{
	unsigned int kept = 0;

	for (unsigned int i = 0; i < count; i++) {
		struct sim_sample s = samples[i];
		unsigned int k = 0;

		if (!s.pid)
			continue;
		while (k < kept && samples[k].pid != s.pid)
			k++;
		if (k < kept)
			s.util_pct += samples[k].util_pct;
		else
			kept++;
		samples[k] = s;
	}
	for (unsigned int k = 0; k < kept; k++)
		samples[k].util_pct = (samples[k].util_pct + count / 2) / count;
	return kept;
}

/*
 * What NVML says of the samples taken after `after_us`; `out` holds SIM_MAX_SAMPLES. As nvml.h has it, one entry per
 * process; with FAIRSCHED_SIM_NVML_SAMPLES=each one per sample.
 */
unsigned int read_utilization(const struct sim_gpu *shm, struct sim_sample *out, uint64_t after_us)
{
	const char *reading = getenv("FAIRSCHED_SIM_NVML_SAMPLES");
	unsigned int count = read_samples(shm, out, after_us);

	return reading && !strcmp(reading, "each") ? each_sample(out, count) : averaged(out, count);
}

void read_busy(const struct sim_gpu *shm, uint64_t *busy_ns, uint64_t *at_ns)
{
	uint64_t now_ns = sim_now_ns();
	uint32_t seq;

	do {
		while (!read_begin(shm, &seq))
			;
		/* Of an instance that nobody has used yet no phase is known. */
		*at_ns = now_ns < shm->limit_ns || !shm->limit_ns ? now_ns : shm->limit_ns;
		if (*at_ns < shm->charged_ns)
			*at_ns = shm->charged_ns;
		*busy_ns = shm->busy_ns + (shm->phase == SIM_EXEC ? *at_ns - shm->charged_ns : 0);
	} while (!read_was_clean(shm, seq));
}
