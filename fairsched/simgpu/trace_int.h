/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The resource manager behind `nvidiactl`, as far as the trace of context switches needs it.
 *
 * Problem. The nodes of a simulated GPU are plain files, of which the kernel answers an ioctl with ENOTTY. A reader of
 * the trace makes ioctls and maps what the driver wrote.
 *
 * Approach. A library that is preloaded into the reader's process. It answers the calls of libc on an open
 * DIR/dev/nvidiactl (DIR: FAIRSCHED_SIM_DIR) as the driver would, and passes on all others. What ran comes from the
 * engine's log of turns. Where the driver would fault, the process is aborted: a test must not pass on it.
 *
 * Terms. file: an open nvidiactl. object: what a client of the resource manager has, by handle. turn: see simshm.h.
 */
#ifndef TRACE_INT_H
#define TRACE_INT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "simos.h"
#include "simshm.h"

enum { /* what the resource manager answers */
	RM_OK = 0,
	RM_GPU_IS_LOST = 0x0f,
	RM_DUPLICATE = 0x19,
	RM_BAD_ARGUMENT = 0x1f,
	RM_BAD_CLASS = 0x22,
	RM_BAD_CLIENT = 0x23,
	RM_BAD_DEVICE = 0x26,
	RM_BAD_PARENT = 0x36,
	RM_BAD_SIZE = 0x3a,
	RM_NO_MEMORY = 0x51,
	RM_NOT_SUPPORTED = 0x56,
	RM_NOT_FOUND = 0x57,
	RM_IN_USE = 0x63,
};

enum {
	CLASS_CLIENT = 0x41,
	CLASS_DEVICE = 0x80,
	CLASS_SUBDEVICE = 0x2080,
	CLASS_MEMORY = 0x90ce,
	CLASS_EVENT_BUFFER = 0x90cd,
};

struct rm_alloc {
	uint32_t root;
	uint32_t parent;
	uint32_t object;
	uint32_t class;
	uint64_t params;
	uint64_t rights;
	uint32_t params_size;
	uint32_t flags;
	uint32_t status;
	uint32_t pad;
};

struct rm_control {
	uint32_t client;
	uint32_t object;
	uint32_t cmd;
	uint32_t flags;
	uint64_t params;
	uint32_t params_size;
	uint32_t status;
};

struct rm_map {
	uint32_t client;
	uint32_t device;
	uint32_t memory;
	uint32_t pad0;
	uint64_t offset;
	uint64_t length;
	uint64_t address;
	uint32_t status;
	uint32_t flags;
	int32_t fd;
	uint32_t pad1;
};

struct ring_header {
	_Atomic uint32_t get;
	_Atomic uint32_t put;
	uint64_t count;
	uint64_t dropped;
	uint64_t vardata_dropped;
};

struct ring_record {
	uint16_t type;
	uint16_t subtype;
	uint32_t vardata;
	uint8_t tag;
	uint8_t vmid;
	uint16_t seqno;
	uint32_t channel;
	uint32_t pid;
	uint16_t reserved;
	uint8_t mig_gpu;
	uint8_t mig_compute;
	uint64_t time;
};

_Static_assert(sizeof(struct rm_alloc) == 48, "NVOS64");
_Static_assert(sizeof(struct rm_control) == 32, "NVOS54");
_Static_assert(sizeof(struct rm_map) == 56, "NVOS33 with its descriptor");
_Static_assert(sizeof(struct ring_header) == 32, "header of an event buffer");
_Static_assert(sizeof(struct ring_record) == 32, "record of a context switch");

struct object {
	struct object *next;
	uint32_t root;
	uint32_t handle;
	uint32_t parent;
	uint32_t class;
	uint32_t gpu; /* of a device, a subdevice, an event buffer */
	int memory;   /* a memfd, or -1 */
	void *seen;   /* it, mapped */
	uint64_t bytes;
	bool is_read_only; /* to its user */
	/* Of an event buffer: */
	struct ring_header *header;
	struct ring_record *records;
	uint32_t size;
	bool is_bound;
	bool is_of_all; /* bound by who may see all processes */
	bool is_enabled;
	bool keeps_newest;
	uint16_t seqno;
	uint64_t turns;   /* seen so far */
	uint64_t written; /* records, or lost in the hardware's log */
};

struct file {
	pid_t owner;
	ino_t node;
	struct object *objects;
	int mapped; /* the memfd that mmap() of this file shows; -1 = none */
	uint64_t mapped_bytes;
};

/* trace_objects.c. All under the lock of trace_calls.c. */
struct object *object_find(struct file *f, uint32_t root, uint32_t handle);
uint32_t object_alloc(struct file *f, struct rm_alloc *call);
uint32_t object_map(struct file *f, struct file *target, const struct rm_map *call);
void objects_free(struct file *f);
uint32_t client_check(struct file *f, uint32_t root);
_Noreturn void would_fault(const char *why);

/* trace_controls.c */
uint32_t object_control(struct file *f, struct rm_control *call);

/* trace_gpus.c: what the engine says. */
bool gpus_open(const char *dir);
uint32_t gpus_count(void);
const struct sim_gpu *gpu_of(uint32_t gpu);
struct sim_turns *turns_of(uint32_t gpu);
bool gpus_catch_up(void);
bool gpu_is_split(uint32_t gpu);
uint64_t gpu_time_ns(uint32_t gpu, uint64_t monotonic_ns);

/* trace_records.c */
void records_begin(struct object *buffer);
void records_fill(struct object *buffer);

#endif
