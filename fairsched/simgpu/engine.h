/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the engine say to each other. */
#ifndef ENGINE_H
#define ENGINE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "sim_mig.h"

/* A live context. Fields below `region` are the engine's own. */
struct ectx {
	struct ectx *next; /* in order of creation */
	struct sim_region *region;
	struct sim_truth *truth;
	uint32_t index;  /* of the region */
	int client;      /* fd of its connection */
	uint64_t number; /* 1, 2, ... in order of creation */
	uint64_t place;  /* position in the circle */
	uint64_t last_stop_ns;
	uint32_t last_stream;
	uint32_t stream;    /* whose head is in progress, running or interrupted; or NO_STREAM */
	uint64_t left_ns;   /* what is left of that */
	uint64_t grace_ns;  /* while its set drains: how much longer it stays */
	uint64_t joined_ns; /* start of this stay */
	uint64_t set;       /* the last set of contexts it ran in */
	uint32_t seat;      /* 1 ... running_count while it runs, else 0 */
	uint32_t slices;    /* of the MIG instance it is on; 0 = a whole GPU */
	uint32_t channel;   /* of its kernels: a number no other channel of this host has */
	bool is_mps_server;
};

#define NO_STREAM UINT32_MAX

struct egpu {
	pthread_mutex_t lock; /* over everything below and all of the GPU's accounts */
	struct sim_gpu *shm;
	struct sim_turns *turns; /* NULL for a MIG instance */
	uint32_t loaded_pid;     /* whose state the engine holds, running or not, as the trace names it ... */
	uint32_t loaded_channel; /* ... and by what channel; 0 = nobody's */
	uint64_t turn_ns;        /* the last stamp of the trace */
	struct sim_region *regions;
	int regions_fd;
	uint32_t index;
	struct ectx *contexts;
	struct ectx *current; /* whose slice it is or was */
	struct ectx *running[SIM_MAX_OVERLAP];
	uint32_t running_count;
	bool is_draining; /* the slice is over, some kernels cannot be interrupted yet */
	uint64_t set;     /* grows when other contexts are switched to */
	uint64_t share_from_ns;
	uint64_t random_state;
	enum sim_phase phase;
	uint64_t last_place;
	uint64_t contexts_made;
	uint64_t slice_end_ns; /* of the slice in progress, whether anybody waits for it or not */
	uint64_t phase_end_ns; /* SIM_SWITCH */
	struct ectx *copy_ctx;
	uint32_t copy_stream;
	uint64_t copy_end_ns;
	uint64_t copy_free_ns;
	uint64_t next_sample_ns;
	uint64_t sample_busy_ns;
	uint64_t next_util_ns;
	uint64_t util_busy_ns;
	uint64_t next_booking_ns;
	bool needs_poll; /* a head waits on memory or on another GPU: nobody rings for that */
	pthread_t thread;
	_Atomic bool is_started; /* its thread runs; that of an instance does from its first context on */
	uint8_t region_in_use[SIM_MAX_REGIONS];
};

struct engine {
	const char *dir;
	const char *root; /* removed too if nothing else is in it; NULL = leave it */
	uint32_t gpu_count;
	struct egpu gpus[SIM_MAX_DEVICES]; /* by their numbers, see simshm.h */
};

extern struct engine engine;

/* engine_queue.c: what is at the head of the queues, and since when it could run. */
uint32_t streams_used(const struct ectx *c);
struct sim_cmd *queue_head(struct sim_stream *s);
uint64_t stream_ready_ns(struct ectx *c, uint32_t stream, uint32_t op);
uint64_t context_ready_ns(struct ectx *c);
uint64_t kernel_ns(const struct ectx *c, const struct sim_cmd *cmd);
void queue_complete(struct ectx *c, uint32_t stream, uint64_t at_ns);
void settle(struct egpu *g);
uint64_t tail_sum(const struct egpu *g);

/* engine_sched.c: the simulation proper. Call with the lock held. */
void gpu_step(struct egpu *g, uint64_t now_ns);
void gpu_charge_to(struct egpu *g, uint64_t now_ns);
void gpu_drop_context(struct egpu *g, struct ectx *c, uint64_t now_ns);
uint64_t gpu_turn_ns(struct egpu *g);
void accounts_open(struct egpu *g);
void accounts_close(struct egpu *g);

/* engine_copy.c, engine_sample.c: events beside the compute ones. */
uint64_t copy_next_ns(const struct egpu *g);
void copy_advance(struct egpu *g, uint64_t at_ns);
void copy_forget(struct egpu *g, struct ectx *c, uint64_t now_ns);
uint64_t sample_next_ns(const struct egpu *g);
void sample_take(struct egpu *g, uint64_t at_ns);

/* engine_turns.c: the log of context switches. Call with the lock held. */
void turns_name(struct ectx *c, uint32_t pid);
void turns_switched(struct egpu *g, uint64_t at_ns);
void turns_drop(struct egpu *g, const struct ectx *c, uint64_t now_ns);

/* engine_thread.c */
void *gpu_thread(void *gpu);
void gpu_kick(struct egpu *g);
bool gpu_start(struct egpu *g);

/* engine_client.c: contexts and memory, on behalf of a client. */
void client_request(int fd, uint32_t pid, const struct sim_request *rq, struct sim_reply *rp);
void client_gone(int fd);

/* engine_control.c */
void control_block_signals(void);
int control_run(int listen_fd, int stop_fd);

#endif
