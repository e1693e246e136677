/* SPDX-License-Identifier: Apache-2.0 */
/* simload: programs that use a GPU the way inference servers and trainers do. */
#ifndef SIMLOAD_H
#define SIMLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct options {
	const char *kind;
	const char *libcuda;
	const char *log_path;
	const char *image_path;   /* of a module for a real GPU; NULL: the simulated one needs none */
	const char *gpu_log_path; /* what such a module's kernels note: simload_gpu.c */
	const char *jitter_kind;  /* lognormal | uniform */
	const char *submit;       /* launch | graph */
	const char *wait;         /* sync | query | pinned | none */
	const char *arrival;      /* closed | poisson | onoff */
	double seconds;           /* 0 = until SIGTERM */
	double jitter_ratio;
	double kernel_us;
	double gap_us;
	double launch_gap_us; /* slept between two launches of a step */
	double rate_per_s;
	double on_us;
	double off_us;
	double feign_ratio; /* kernels so many times as long whenever others were there; 0 = no */
	uint64_t seed;
	uint64_t alloc_bytes;
	uint64_t copy_bytes;
	int device;
	int contexts;
	int streams;
	int kernels;
	int depth;
	int threads;
	int blocks; /* of a launch: a real GPU is filled by many */
	int block_threads;
};

/* The driver API, found as the CUDA runtime finds it. */
struct cuda {
	int (*init)(unsigned int);
	int (*device_get)(int *, int);
	int (*device_uuid)(void *, int);
	int (*primary_retain)(void **, int);
	int (*ctx_create)(void **, unsigned int, int);
	int (*ctx_set)(void *);
	int (*stream_create)(void **, unsigned int);
	int (*stream_sync)(void *);
	int (*stream_write32)(void *, uint64_t, uint32_t, unsigned int);
	int (*event_create)(void **, unsigned int);
	int (*event_record)(void *, void *);
	int (*event_sync)(void *);
	int (*event_query)(void *);
	int (*stream_wait_event)(void *, void *, unsigned int);
	int (*module_load)(void **, const void *);
	int (*module_function)(void **, void *, const char *);
	int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		      unsigned int, unsigned int, void *, void **, void **);
	int (*graph_create)(void **, unsigned int);
	int (*graph_add)(void **, void *, const void *, size_t, const void *);
	int (*graph_instantiate)(void **, void *, unsigned long long);
	int (*graph_launch)(void *, void *);
	int (*mem_alloc)(uint64_t *, size_t);
	int (*host_alloc)(void **, size_t, unsigned int);
	int (*copy_to_device)(uint64_t, const void *, size_t, void *);
};

#define MAX_STREAMS 64
#define MAX_DEPTH 256
#define GRAPH_VARIANTS 8

/* One context and the thread that drives it. */
struct lane {
	const struct options *o;
	const struct cuda *cu;
	int index;
	uint64_t start_ns; /* of the load: the same for all lanes */
	void *ctx;
	void *function;
	void *streams[MAX_STREAMS];
	uint64_t rng;
	double stretch_ratio; /* of kernel times, for now */
	uint64_t buffer;
	struct gpu_log *gpu_log; /* NULL: nothing is noted */
};

extern volatile bool stopping;

void must(int rc, const char *what);
bool cuda_load(struct cuda *cu, const char *path, bool past_exports);
void lane_open(struct lane *l);
bool lane_run(struct lane *l); /* false: no such kind */

/* What the kinds share. */
bool running(void);
void launch_kernel(struct lane *l, void *stream, uint64_t ns);
void launch_kernels(struct lane *l);
void copy_step(struct lane *l);
void sync_step(struct lane *l);
void *make_graph(struct lane *l);
void run_step(struct lane *l); /* simload_step.c */

/* Kernels that time themselves: simload_gpu.c */
const char *image_of(const struct options *o);
void gpu_log_open(struct lane *l);
void gpu_log_mark(struct lane *l); /* asks the GPU what time it is */
void gpu_log_write(const struct lane *lanes);

uint64_t now_ns(void);
void sleep_us(double us);
double random_unit(uint64_t *rng);
double random_exponential(uint64_t *rng, double mean);
uint64_t random_kernel_ns(struct lane *l);

/* The log Python reads while it is written: see simload_log.c. */
/* As a server of MPS, where FAIRSCHED_SIM_MPS_LISTEN names a socket. */
void listen_for_mps(void);

bool log_open(const char *path);
void log_ready(void);
void log_step(uint64_t end_ns, double tokens, uint64_t latency_ns);

#endif
