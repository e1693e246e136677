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
	CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
	CUDA_ERROR_FILE_NOT_FOUND = 301,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
	CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
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

enum memory_kind {
	MEMORY_DEVICE,
	MEMORY_MANAGED,
	MEMORY_HOST,      /* page-locked, allocated here */
	MEMORY_REGISTERED /* page-locked, allocated by the application */
};

struct cu_memory {
	struct cu_memory *next;
	CUdeviceptr address;
	uint64_t bytes; /* as asked for */
	uint64_t taken_bytes;
	enum memory_kind kind;
	bool has_contents;
	uint64_t id;
	unsigned int flags;
	struct cu_pool *pool;
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
	size_t limits[7];   /* 0: the usual */
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

/* A module, or a library: the two are one thing here. */
struct cu_module {
	struct cu_image *image; /* NULL: a module without one, whose kernels are told their time */
	struct cu_function *functions;
	struct cu_global *globals;
	pthread_mutex_t lock;
};

/*
 * CUfunction_attribute by number: threads per block; shared, constant, local bytes; registers; PTX and binary
 * version; cache mode; dynamic shared bytes; carveout (-1: none wished for); clusters.
 */
#define SIM_FUNCTION_ATTRIBUTES 16
#define SIM_FUNCTION_DEFAULTS                                             \
	{                                                                 \
		1024, 0, 0, 0, 32, 90, 90, 0, 49152, -1, 0, 0, 0, 0, 0, 0 \
	}

/* A function, or a kernel. */
struct cu_function {
	struct cu_function *next;
	struct cu_module *module;
	char *name;
	uint64_t default_ns;
	bool is_told; /* kernelParams[0] points at its time */
	int attributes[SIM_FUNCTION_ATTRIBUTES];
};

struct cu_graph {
	uint64_t total_ns;
	uint32_t kernels;
	struct cu_user_reference *references;
};

typedef struct cu_ctx *CUcontext;
typedef struct cu_stream *CUstream;
typedef struct cu_event *CUevent;
typedef struct cu_function *CUfunction;
typedef struct cu_graph *CUgraph;
typedef struct cu_graph *CUgraphExec;
typedef void (*CUhostFn)(void *user);
typedef void (*CUstreamFn)(CUstream s, CUresult status, void *user);

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
	int mps_socket; /* -1: it is no client of an MPS server */
	int device_count;
	struct sim_device devices[SIM_MAX_GPUS];
	char dir[400];
	pthread_mutex_t lock;
	CUcontext live;
} client;

/* cuda_visible.c: the numbers of the devices a process sees; returns how many. */
int visible_devices(const char *dir, struct sim_device *out);
/* Of the GPU that a device is, or is an instance of; false: it is gone. */
bool whole_spec(uint32_t device, struct sim_spec *spec);

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

/* cuda_memory.c */
CUresult memory_alloc(CUdeviceptr *out, size_t bytes, enum memory_kind kind, struct cu_pool *pool);
void memory_forget(CUcontext c);
int64_t pinned_offset(const struct cu_ctx *c, uint64_t address);

/* cuda_contents.c: the bytes in device memory. */
struct copy_shape {
	uint64_t dst, src;
	uint64_t dst_pitch, src_pitch; /* bytes from row to row */
	uint64_t dst_plane, src_plane; /* and from plane to plane */
	uint64_t width, rows, planes;  /* bytes, rows, planes */
};

struct set_shape {
	uint64_t dst;
	uint32_t value;
	uint32_t element; /* bytes of it that count: 1, 2 or 4 */
	uint64_t width;   /* elements */
	uint64_t rows, pitch;
};

void contents_map(struct cu_memory *m);
void contents_unmap(struct cu_memory *m);
bool memory_find(uint64_t address, struct cu_memory *out, CUcontext *owner);
CUresult contents_check(const struct copy_shape *s, bool *moves);
void contents_move(const struct copy_shape *s);
CUresult contents_fill(const struct set_shape *s);

/* cuda_userobject.c */
CUresult user_objects_share(CUgraph to, CUgraph from);
void user_objects_drop(CUgraph g);

/* cuda_pool.c */
void pool_give_back(struct cu_pool *pool, uint64_t bytes);

/* cuda_image.c: what a module's image says of itself. */
struct cu_image *image_load(const void *code, CUresult *rc);
char *image_file(const char *path, size_t *bytes);
void image_free(struct cu_image *image);
bool image_has_kernel(const struct cu_image *image, const char *name);
const char *image_kernel(const struct cu_image *image, uint32_t index); /* NULL: no more */
bool image_global(const struct cu_image *image, const char *name, uint64_t *bytes);

/* cuda_duration.c */
CUresult duration_of(struct cu_function *f);
uint64_t duration_ns(const struct cu_function *f, void **params);

/* cuda_rm.c: what the kernel driver would be asked. */
void rm_create_context(struct cu_ctx *c);
void rm_destroy_context(struct cu_ctx *c);
uint32_t rm_alloc_memory(struct cu_ctx *c, uint64_t bytes, bool failed);
void rm_free_memory(struct cu_ctx *c, uint32_t handle);
void rm_forget(void);

#endif
