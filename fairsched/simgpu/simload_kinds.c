// SPDX-License-Identifier: Apache-2.0
/* The kinds of load. To add one: a function that loops while running(), and a row in kinds[]. */
#include <stdlib.h>
#include <string.h>

#include "simload.h"

bool running(void)
{
	return !stopping;
}

void launch_kernel(struct lane *l, void *stream, uint64_t ns)
{
	unsigned int blocks = (unsigned int)l->o->blocks, threads = (unsigned int)l->o->block_threads;
	void *params[] = {&ns, &l->gpu_log};

	must(l->cu->launch(l->function, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL),
	     "cuLaunchKernel");
}

void launch_kernels(struct lane *l)
{
	for (int k = 0; k < l->o->kernels; k++) {
		if (k)
			sleep_us(l->o->launch_gap_us);
		launch_kernel(l, l->streams[k % l->o->streams], random_kernel_ns(l));
	}
}

/* From nowhere: the time alone. Moving the bytes would take this machine's memory and cores. */
void copy_step(struct lane *l)
{
	if (l->o->copy_bytes)
		must(l->cu->copy_to_device(l->buffer, NULL, l->o->copy_bytes, l->streams[0]),
		     "cuMemcpyHtoDAsync");
}

static void launch_step(struct lane *l)
{
	launch_kernels(l);
	copy_step(l);
}

void sync_step(struct lane *l)
{
	for (int i = 0; i < l->o->streams; i++)
		must(l->cu->stream_sync(l->streams[i]), "cuStreamSynchronize");
}

/* One token: launch, wait, log. */
static void token(struct lane *l)
{
	uint64_t start = now_ns();
	uint64_t end;

	launch_step(l);
	sync_step(l);
	end = now_ns();
	log_step(end, 1, end - start);
}

static void run_decode(struct lane *l)
{
	while (running()) {
		token(l);
		sleep_us(l->o->gap_us);
	}
}

/* Requests come at random (Poisson, gap_us apart on average), each one batch of kernels. */
static void run_prefill(struct lane *l)
{
	while (running()) {
		sleep_us(random_exponential(&l->rng, l->o->gap_us));
		token(l);
	}
}

/* Idle for gap_us, then `depth` steps back to back. */
static void run_burst(struct lane *l)
{
	while (running()) {
		sleep_us(l->o->gap_us);
		for (int i = 0; i < l->o->depth && running(); i++)
			token(l);
	}
}

/* Asynchronous: up to `depth` steps are queued; waits for the one launched `depth` steps ago. */
static void run_trainer(struct lane *l)
{
	int depth = l->o->depth < MAX_DEPTH ? l->o->depth : MAX_DEPTH;
	void *events[MAX_DEPTH];
	uint64_t started[MAX_DEPTH];

	for (int i = 0; i < depth; i++)
		must(l->cu->event_create(&events[i], 0), "cuEventCreate");
	for (uint64_t step = 0; running(); step++) {
		int slot = (int)(step % (uint64_t)depth);

		if (step >= (uint64_t)depth) {
			uint64_t end;

			must(l->cu->event_sync(events[slot]), "cuEventSynchronize");
			end = now_ns();
			log_step(end, 1, end - started[slot]);
		}
		started[slot] = now_ns();
		launch_step(l);
		must(l->cu->event_record(events[slot], l->streams[(l->o->kernels - 1) % l->o->streams]),
		     "cuEventRecord");
		sleep_us(l->o->gap_us);
	}
	sync_step(l);
}

void *make_graph(struct lane *l)
{
	struct {
		void *function;
		unsigned int grid_block_shared[7];
		void **params;
		void **extra;
		void *reserved[2];
	} node = {.function = l->function,
		  .grid_block_shared = {(unsigned int)l->o->blocks, 1, 1, (unsigned int)l->o->block_threads,
					1, 1, 0}};
	void *graph, *exec, *handle = NULL;

	must(l->cu->graph_create(&graph, 0), "cuGraphCreate");
	for (int k = 0; k < l->o->kernels; k++) {
		uint64_t ns = random_kernel_ns(l);
		void *params[] = {&ns, &l->gpu_log};
		void *before = handle;

		node.params = params;
		must(l->cu->graph_add(&handle, graph, k ? &before : NULL, k > 0, &node),
		     "cuGraphAddKernelNode");
	}
	must(l->cu->graph_instantiate(&exec, graph, 0), "cuGraphInstantiate");
	return exec;
}

static void run_graph(struct lane *l)
{
	void *graphs[GRAPH_VARIANTS];

	for (int i = 0; i < GRAPH_VARIANTS; i++)
		graphs[i] = make_graph(l);
	for (uint64_t step = 0; running(); step++) {
		uint64_t start = now_ns();
		uint64_t end;

		must(l->cu->graph_launch(graphs[step % GRAPH_VARIANTS], l->streams[0]), "cuGraphLaunch");
		must(l->cu->stream_sync(l->streams[0]), "cuStreamSynchronize");
		end = now_ns();
		log_step(end, 1, end - start);
		sleep_us(l->o->gap_us);
	}
}

/* The GPU writes a flag in pinned memory; no API call tells of the end. */
static void run_poll(struct lane *l)
{
	volatile uint32_t *flag;
	void *memory;

	must(l->cu->host_alloc(&memory, sizeof(*flag), 0), "cuMemHostAlloc");
	flag = memory;
	for (uint32_t step = 1; running(); step++) {
		uint64_t start = now_ns();
		uint64_t end;

		launch_step(l);
		must(l->cu->stream_write32(l->streams[0], (uintptr_t)flag, step, 0), "cuStreamWriteValue32");
		while (*flag != step && running())
			sleep_us(50);
		end = now_ns();
		log_step(end, 1, end - start);
		sleep_us(l->o->gap_us);
	}
}

/* Hostile: fills the queues and never waits, but for room in them. */
static void run_nosync(struct lane *l)
{
	while (running()) {
		uint64_t start = now_ns();
		uint64_t end;

		launch_step(l);
		end = now_ns();
		log_step(end, 1, end - start);
	}
}

static const struct {
	const char *name;
	void (*run)(struct lane *);
} kinds[] = {
	{"decode", run_decode},
	{"prefill", run_prefill},
	{"burst", run_burst},
	{"trainer", run_trainer},
	{"graph", run_graph},
	{"longkernel", run_decode}, /* a decoder with one kernel of 50 to 200 ms */
	{"poll", run_poll},
	{"nosync", run_nosync},
	{"step", run_step},
	{"static", run_step}, /* with functions from behind the exports: see cuda_load() */
};

bool lane_run(struct lane *l)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].name, l->o->kind)) {
			kinds[i].run(l);
			return true;
		}
	return false;
}
