// SPDX-License-Identifier: Apache-2.0
/*
 * The general load: how steps are submitted, how their ends are noticed and when they arrive are chosen
 * apart. A step is `begun` when it was submitted, or when it arrived where arrivals do not wait for us.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simload.h"

#define NOT_READY 600
#define LOOK_US 50          /* between two looks; a busy loop would take a processor from the others */
#define NAP_NS 100000000ull /* longest sleep before looking whether to stop */
#define CROWDED 1.5         /* a step that takes so many times what it should was not alone */
#define ARRIVALS 0xa5a5a5a5a5a5a5a5ull

enum wait {
	SYNC,
	QUERY,
	PINNED,
	NONE
};

struct steps {
	struct lane *l;
	enum wait wait;
	uint64_t room; /* steps in flight before we wait */
	int used_streams;
	int graph_count; /* 0: kernels are launched one by one */
	void *graphs[GRAPH_VARIANTS];
	void *joins[MAX_STREAMS];
	void *ends[MAX_DEPTH];
	uint64_t begun_ns[MAX_DEPTH];
	volatile uint32_t *flag; /* number of the last step that ended, written by the GPU */
	_Atomic uint64_t submitted;
	uint64_t noticed;
	sem_t has_room;
	sem_t has_step;
};

static int choose(const char *what, const char *given, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(names[i], given))
			return i;
	fprintf(stderr, "simload: --%s is not %s\n", what, given);
	exit(2);
}

static void open_graphs(struct steps *s)
{
	s->graph_count = s->l->o->jitter_ratio > 0 ? GRAPH_VARIANTS : 1;
	for (int i = 0; i < s->graph_count; i++)
		s->graphs[i] = make_graph(s->l);
}

static void open_steps(struct steps *s)
{
	static const char *const submits[] = {"launch", "graph", NULL};
	static const char *const waits[] = {"sync", "query", "pinned", "none", NULL};
	const struct options *o = s->l->o;
	const struct cuda *cu = s->l->cu;
	void *memory;

	if (o->depth > MAX_DEPTH) {
		fprintf(stderr, "simload: --depth is at most %d\n", MAX_DEPTH);
		exit(2);
	}
	s->wait = (enum wait)choose("wait", o->wait, waits);
	s->room = s->wait == NONE ? 1 : (uint64_t)o->depth;
	s->used_streams = o->kernels < o->streams ? o->kernels : o->streams;
	if (choose("submit", o->submit, submits)) {
		s->used_streams = 1;
		open_graphs(s);
	}
	for (int i = 1; i < s->used_streams; i++)
		must(cu->event_create(&s->joins[i], 0), "cuEventCreate");
	for (int i = 0; i < o->depth; i++)
		must(cu->event_create(&s->ends[i], 0), "cuEventCreate");
	if (s->wait == PINNED) {
		must(cu->host_alloc(&memory, sizeof(*s->flag), 0), "cuMemHostAlloc");
		s->flag = memory;
	}
	sem_init(&s->has_room, 0, (unsigned int)s->room);
	sem_init(&s->has_step, 0, 0);
}

/* Stream 0 goes on when all have come so far, so that one mark tells of the end of the step. */
static void join_streams(struct steps *s)
{
	const struct lane *l = s->l;

	for (int i = 1; i < s->used_streams; i++) {
		must(l->cu->event_record(s->joins[i], l->streams[i]), "cuEventRecord");
		must(l->cu->stream_wait_event(l->streams[0], s->joins[i], 0), "cuStreamWaitEvent");
	}
}

static bool waits_for_streams(const struct steps *s)
{
	return s->wait == SYNC && s->room == 1;
}

static void mark_end(struct steps *s)
{
	const struct lane *l = s->l;

	if (s->wait == NONE || waits_for_streams(s))
		return;
	join_streams(s);
	if (s->wait == PINNED)
		must(l->cu->stream_write32(l->streams[0], (uintptr_t)s->flag, (uint32_t)(s->submitted + 1),
					   0),
		     "cuStreamWriteValue32");
	else
		must(l->cu->event_record(s->ends[s->submitted % s->room], l->streams[0]), "cuEventRecord");
}

static void submit(struct steps *s, uint64_t begun_ns)
{
	struct lane *l = s->l;

	s->begun_ns[s->submitted % s->room] = begun_ns;
	if (s->graph_count)
		must(l->cu->graph_launch(s->graphs[s->submitted % (uint64_t)s->graph_count], l->streams[0]),
		     "cuGraphLaunch");
	else
		launch_kernels(l);
	copy_step(l);
	mark_end(s);
	s->submitted++;
}

static void wait_for_oldest(struct steps *s)
{
	const struct cuda *cu = s->l->cu;
	void *end = s->ends[s->noticed % s->room];
	int rc;

	switch (s->wait) {
	case SYNC:
		if (waits_for_streams(s))
			for (int i = 0; i < s->used_streams; i++)
				must(cu->stream_sync(s->l->streams[i]), "cuStreamSynchronize");
		else
			must(cu->event_sync(end), "cuEventSynchronize");
		break;
	case QUERY:
		while ((rc = cu->event_query(end)) == NOT_READY)
			sleep_us(LOOK_US);
		must(rc, "cuEventQuery");
		break;
	case PINNED:
		while ((int32_t)(*s->flag - (uint32_t)(s->noticed + 1)) < 0)
			sleep_us(LOOK_US);
		break;
	case NONE:
		break;
	}
}

static void notice(struct steps *s)
{
	uint64_t end_ns;

	wait_for_oldest(s);
	end_ns = now_ns();
	log_step(end_ns, 1, end_ns - s->begun_ns[s->noticed % s->room]);
	s->noticed++;
}

static void drain(struct steps *s)
{
	while (s->noticed < s->submitted)
		notice(s);
}

/* One turn of the closed loop: the next step follows the oldest that is in flight. */
static void turn(struct steps *s)
{
	submit(s, now_ns());
	if (s->submitted - s->noticed < s->room)
		return;
	notice(s);
	sleep_us(s->l->o->gap_us);
}

/* Returns early when we are to stop. */
static void sleep_until(uint64_t at_ns)
{
	uint64_t now = now_ns();

	for (; now < at_ns && running(); now = now_ns())
		sleep_us((double)(at_ns - now < NAP_NS ? at_ns - now : NAP_NS) / 1e3);
}

/* Other work for each launch after a step that took long, which is when others are there: turns look unequal. */
static void feign(struct lane *l, uint64_t took_ns)
{
	double launched_us = l->o->launch_gap_us * (l->o->kernels - 1);
	double alone_us = l->o->kernel_us * l->stretch_ratio * l->o->kernels + l->o->gap_us + launched_us;

	l->stretch_ratio = (double)took_ns > CROWDED * 1e3 * alone_us ? l->o->feign_ratio : 1;
}

static void run_closed(struct steps *s)
{
	while (running()) {
		uint64_t begun_ns = now_ns();

		turn(s);
		if (s->l->o->feign_ratio > 0)
			feign(s->l, now_ns() - begun_ns);
	}
	drain(s);
}

/* The grid of phases is fixed in time: who was held through a pause does not make it longer. */
static void run_onoff(struct steps *s)
{
	uint64_t start = s->l->start_ns;
	uint64_t on = (uint64_t)(s->l->o->on_us * 1e3);
	uint64_t period = on + (uint64_t)(s->l->o->off_us * 1e3);

	while (running()) {
		uint64_t phase = (now_ns() - start) % period;

		if (phase < on) {
			turn(s);
			continue;
		}
		drain(s);
		phase = (now_ns() - start) % period;
		if (phase >= on)
			sleep_until(now_ns() + period - phase);
	}
	drain(s);
}

static void take(sem_t *semaphore)
{
	while (sem_wait(semaphore))
		;
}

static void *notice_all(void *arg)
{
	struct steps *s = arg;

	must(s->l->cu->ctx_set(s->l->ctx), "cuCtxSetCurrent");
	for (;;) {
		take(&s->has_step);
		if (s->noticed == s->submitted)
			return NULL; /* posted without a step: there are no more */
		notice(s);
		sem_post(&s->has_room);
	}
}

/* Steps arrive whether we are ready or not. With several in flight another thread notices their ends. */
static void run_poisson(struct steps *s)
{
	uint64_t rng = s->l->rng ^ ARRIVALS; /* of its own: arrivals depend on the seed alone */
	double mean_ns = 1e9 / s->l->o->rate_per_s;
	double at_ns = 0;
	pthread_t noticer;

	if (s->room > 1 && pthread_create(&noticer, NULL, notice_all, s))
		exit(1);
	for (;;) {
		at_ns += random_exponential(&rng, mean_ns);
		sleep_until(s->l->start_ns + (uint64_t)at_ns);
		if (!running())
			break;
		if (s->room > 1)
			take(&s->has_room);
		submit(s, s->l->start_ns + (uint64_t)at_ns);
		if (s->room > 1)
			sem_post(&s->has_step);
		else
			notice(s);
		sleep_us(s->l->o->gap_us);
	}
	if (s->room > 1) {
		sem_post(&s->has_step);
		pthread_join(noticer, NULL);
	}
}

void run_step(struct lane *l)
{
	static const char *const arrivals[] = {"closed", "poisson", "onoff", NULL};
	static void (*const run[])(struct steps *) = {run_closed, run_poisson, run_onoff};
	struct steps s = {.l = l};
	int arrival = choose("arrival", l->o->arrival, arrivals);

	if ((arrival == 1 && l->o->rate_per_s <= 0) ||
	    (arrival == 2 && (l->o->on_us < 1 || l->o->off_us < 1))) {
		fprintf(stderr, "simload: poisson needs --rate-per-s, onoff needs --on-us and --off-us\n");
		exit(2);
	}
	open_steps(&s);
	run[arrival](&s);
}
