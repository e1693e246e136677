// SPDX-License-Identifier: Apache-2.0
/*
 *   simload --enter [--cgroup DIR] [--die-with-parent] -- PROGRAM ARGS...
 *       join the cgroup, then become the program: it has never run outside.
 *   simload --kind decode [--kernels N] [--kernel-us X] ...
 *       be a load until --seconds are over or SIGTERM comes.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "simload.h"

volatile bool stopping;

static int join_cgroup(const char *dir)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	f = fopen(path, "w");
	if (!f || fprintf(f, "%d\n", getpid()) < 0 || fclose(f)) {
		perror(path);
		return -1;
	}
	return 0;
}

static int enter(int argc, char **argv)
{
	int i = 2;

	for (; i < argc && strcmp(argv[i], "--"); i++) {
		if (!strcmp(argv[i], "--die-with-parent"))
			prctl(PR_SET_PDEATHSIG, SIGKILL);
		else if (!strcmp(argv[i], "--cgroup") && i + 1 < argc && join_cgroup(argv[++i]))
			return 1;
	}
	if (i + 1 >= argc)
		return 2;
	execv(argv[i + 1], &argv[i + 1]);
	perror(argv[i + 1]);
	return 1;
}

enum type {
	TEXT,
	REAL,
	COUNT,
	WHOLE
};

static const struct {
	const char *name;
	enum type type;
	size_t offset;
} known[] = {
	{"kind", TEXT, offsetof(struct options, kind)},
	{"libcuda", TEXT, offsetof(struct options, libcuda)},
	{"log", TEXT, offsetof(struct options, log_path)},
	{"image", TEXT, offsetof(struct options, image_path)},
	{"gpu-log", TEXT, offsetof(struct options, gpu_log_path)},
	{"jitter-kind", TEXT, offsetof(struct options, jitter_kind)},
	{"submit", TEXT, offsetof(struct options, submit)},
	{"wait", TEXT, offsetof(struct options, wait)},
	{"arrival", TEXT, offsetof(struct options, arrival)},
	{"seconds", REAL, offsetof(struct options, seconds)},
	{"jitter", REAL, offsetof(struct options, jitter_ratio)},
	{"kernel-us", REAL, offsetof(struct options, kernel_us)},
	{"gap-us", REAL, offsetof(struct options, gap_us)},
	{"launch-gap-us", REAL, offsetof(struct options, launch_gap_us)},
	{"rate-per-s", REAL, offsetof(struct options, rate_per_s)},
	{"on-us", REAL, offsetof(struct options, on_us)},
	{"off-us", REAL, offsetof(struct options, off_us)},
	{"feign", REAL, offsetof(struct options, feign_ratio)},
	{"seed", COUNT, offsetof(struct options, seed)},
	{"alloc-bytes", COUNT, offsetof(struct options, alloc_bytes)},
	{"copy-bytes", COUNT, offsetof(struct options, copy_bytes)},
	{"device", WHOLE, offsetof(struct options, device)},
	{"contexts", WHOLE, offsetof(struct options, contexts)},
	{"streams", WHOLE, offsetof(struct options, streams)},
	{"kernels", WHOLE, offsetof(struct options, kernels)},
	{"depth", WHOLE, offsetof(struct options, depth)},
	{"threads", WHOLE, offsetof(struct options, threads)},
	{"blocks", WHOLE, offsetof(struct options, blocks)},
	{"block-threads", WHOLE, offsetof(struct options, block_threads)},
};

#define KNOWN (sizeof(known) / sizeof(known[0]))

static void set(struct options *o, int i, const char *value)
{
	void *field = (char *)o + known[i].offset;

	switch (known[i].type) {
	case TEXT:
		*(const char **)field = value;
		break;
	case REAL:
		*(double *)field = atof(value);
		break;
	case COUNT:
		*(uint64_t *)field = strtoull(value, NULL, 10);
		break;
	case WHOLE:
		*(int *)field = atoi(value);
		break;
	}
}

static bool parse(struct options *o, int argc, char **argv)
{
	struct option table[KNOWN + 1] = {0};
	int c;

	for (size_t i = 0; i < KNOWN; i++)
		table[i] = (struct option){known[i].name, required_argument, NULL, (int)i};
	while ((c = getopt_long(argc, argv, "", table, NULL)) >= 0) {
		if (c == '?' || (size_t)c >= KNOWN)
			return false;
		set(o, c, optarg);
	}
	return o->contexts > 0 && o->streams > 0 && o->streams <= MAX_STREAMS && o->kernels > 0 &&
	       o->depth > 0;
}

static void *sleeper(void *unused)
{
	while (!stopping)
		pause();
	return unused;
}

static void *watch_signals(void *set)
{
	int sig;

	sigwait(set, &sig);
	stopping = true;
	return NULL;
}

static void *stop_later(void *seconds)
{
	sleep_us(*(double *)seconds * 1e6);
	stopping = true;
	return NULL;
}

static void *drive(void *lane)
{
	struct lane *l = lane;

	must(l->cu->ctx_set(l->ctx), "cuCtxSetCurrent");
	if (!lane_run(l)) {
		fprintf(stderr, "simload: no kind %s\n", l->o->kind);
		exit(2);
	}
	return NULL;
}

/* Before the driver starts threads of its own: one that did not block it would take it, and end us. */
static sigset_t *block_term(void)
{
	static sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	return &set;
}

/* SIGTERM and the deadline are threads' business, so that no call of the load is interrupted. */
static void start_helpers(struct options *o, sigset_t *term)
{
	pthread_attr_t small;
	pthread_t t;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	pthread_create(&t, &small, watch_signals, term);
	if (o->seconds > 0)
		pthread_create(&t, &small, stop_later, &o->seconds);
	for (int i = 0; i < o->threads; i++)
		pthread_create(&t, &small, sleeper, NULL);
}

static int run(struct options *o)
{
	struct lane *lanes = calloc((size_t)o->contexts, sizeof(*lanes));
	pthread_t *threads = calloc((size_t)o->contexts, sizeof(*threads));
	static struct cuda cu;
	sigset_t *term = block_term();
	unsigned char uuid[16];

	if (!lanes || !threads || !cuda_load(&cu, o->libcuda, !strcmp(o->kind, "static")))
		return 1;
	must(cu.init(0), "cuInit");
	must(cu.device_uuid(uuid, o->device), "cuDeviceGetUuid");
	for (int i = 0; i < o->contexts; i++) {
		lanes[i] = (struct lane){.o = o,
					 .cu = &cu,
					 .index = i,
					 .rng = o->seed * 1000003ull + (uint64_t)i,
					 .stretch_ratio = 1};
		lane_open(&lanes[i]);
	}
	start_helpers(o, term);
	log_ready();
	for (int i = 0; i < o->contexts; i++)
		lanes[i].start_ns = now_ns();
	for (int i = 1; i < o->contexts; i++)
		pthread_create(&threads[i], NULL, drive, &lanes[i]);
	drive(&lanes[0]);
	for (int i = 1; i < o->contexts; i++)
		pthread_join(threads[i], NULL);
	gpu_log_write(lanes);
	return 0;
}

int main(int argc, char **argv)
{
	struct options o = {
		.kind = "decode",
		.libcuda = "libcuda.so.1",
		.jitter_kind = "lognormal",
		.submit = "launch",
		.wait = "sync",
		.arrival = "closed",
		.kernel_us = 250,
		.gap_us = 0,
		.seed = 1,
		.contexts = 1,
		.streams = 1,
		.kernels = 20,
		.depth = 4,
		.blocks = 1,
		.block_threads = 1,
	};

	if (argc > 1 && !strcmp(argv[1], "--enter"))
		return enter(argc, argv);
	if (!parse(&o, argc, argv)) {
		fprintf(stderr,
			"usage: simload --kind KIND [--kernels N] [--kernel-us X] ...; see README.md\n");
		return 2;
	}
	prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
	listen_for_mps();
	if (o.log_path && !log_open(o.log_path)) {
		perror(o.log_path);
		return 1;
	}
	return run(&o);
}
