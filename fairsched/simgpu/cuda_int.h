/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in libcuda.so.1: its types and what its parts say to each other. Handles are pointers. */
#ifndef CUDA_INT_H
#define CUDA_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "simos.h"
#include "simshm.h"

/* Result codes, with the driver API's numbers. */
enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_DEINITIALIZED = 4,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_UNKNOWN = 999,
};

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

struct cu_stream {
	struct cu_ctx *ctx;
	uint32_t index;       /* in the region */
	pthread_mutex_t lock; /* several threads may submit to one stream */
	struct cu_graph *capture;
	bool is_closed;
};

struct cu_memory {
	struct cu_memory *next;
	CUdeviceptr address;
	uint64_t bytes;
	uint32_t rm_handle;
};

struct cu_ctx {
	uint32_t gpu;    /* as the engine counts */
	CUdevice device; /* as the application counts */
	uint32_t region_index;
	struct sim_gpu *shm;
	struct sim_region *region;
	unsigned int flags;
	bool is_live;
	struct cu_ctx *next_live;
	pthread_mutex_t lock; /* over the tables below */
	struct cu_stream *streams[SIM_MAX_STREAMS];
	uint8_t event_in_use[SIM_MAX_EVENTS];
	uint64_t event_generation[SIM_MAX_EVENTS];
	uint32_t next_event;
	struct cu_memory *memory;
	uint8_t pin_in_use[SIM_PIN_BYTES / 64];
	_Atomic uint64_t order;
	bool has_host_thread;
	uint32_t rm_client; /* root of this context's RM objects */
};

struct cu_event {
	struct cu_ctx *ctx;
	uint32_t slot;
	uint64_t generation;       /* of the latest record ... */
	uint64_t first_generation; /* ... this: never recorded */
	struct cu_stream *stream;
	uint64_t seq;
};

struct cu_function {
	uint64_t default_ns;
};

struct cu_graph {
	uint64_t total_ns;
	uint32_t kernels;
};

typedef struct cu_ctx *CUcontext;
typedef struct cu_stream *CUstream;
typedef struct cu_event *CUevent;
typedef struct cu_function *CUfunction;
typedef struct cu_graph *CUgraph;
typedef struct cu_graph *CUgraphExec;
typedef void (*CUhostFn)(void *user);

#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

/* cuda_client.c: the engine's memory and control socket. */
struct sim_device {
	uint32_t gpu;
	struct sim_gpu *shm;
	uint8_t *regions;
	CUcontext primary;
	unsigned int primary_refs;
	unsigned int primary_flags;
};

extern struct sim_client {
	bool is_ready;
	int socket;
	int device_count;
	struct sim_device devices[SIM_MAX_GPUS];
	char dir[400];
	pthread_mutex_t lock;
	CUcontext live;
} client;

CUresult client_init(void);
CUresult client_rpc(uint32_t op, uint32_t gpu, uint32_t region, uint64_t a, struct sim_reply *reply);
bool client_engine_gone(const struct cu_ctx *c);

/* cuda_current.c */
CUcontext current_context(void);
CUresult push_context(CUcontext c);
void pop_context(void);     /* nothing where there is none */
void forget_contexts(void); /* in a forked child */

/* cuda_queue.c: the rings. */
CUresult queue_submit(CUstream s, const struct sim_cmd *cmd, uint64_t *seq);
CUresult queue_wait(CUstream s, uint64_t seq);
uint64_t queue_tail(CUstream s);
uint64_t queue_done(CUstream s);
void queue_ring(struct cu_ctx *c, uint32_t index, uint32_t op);

/* cuda_stream.c */
CUresult stream_resolve(CUstream handle, CUstream *out);
CUresult stream_open(CUcontext c, uint32_t flags, CUstream *out);
CUresult stream_wait_all(CUcontext c, bool only_blocking);
void stream_close_all(CUcontext c);

/* cuda_hostfn.c */
void host_thread_start(struct cu_ctx *c);

/* cuda_pinned.c */
int64_t pinned_offset(const struct cu_ctx *c, uint64_t address);

/* cuda_rm.c: what the kernel driver would be asked. */
void rm_create_context(struct cu_ctx *c);
void rm_destroy_context(struct cu_ctx *c);
uint32_t rm_alloc_memory(struct cu_ctx *c, uint64_t bytes, bool failed);
void rm_free_memory(struct cu_ctx *c, uint32_t handle);
void rm_forget(void);

#endif
