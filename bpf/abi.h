/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one truth of what the BPF programs and user space share.
 *
 * Plain C types only, so that bcc's clang, gcc (the layout test) and abi.py (the mirror) agree without
 * kernel headers. Every struct is padded by hand and its size asserted; tests/unit/bpf compares each offset
 * with gcc's, tests/node/bpf with bcc's.
 *
 * Words: a *context* is a CUDA context of one process on one GPU; it lives in a numbered *slot*. Its work is
 * *outstanding* from the submit call to the return of a call that proves completion; while any is outstanding
 * the context has an open *busy interval*. V is the processor-sharing clock of a GPU: it advances by dt/n
 * while n contexts are busy, so a context earns the V that passes during its intervals.
 */
#ifndef FAIRSCHED_ABI_H
#define FAIRSCHED_ABI_H

typedef unsigned char fs_u8;
typedef unsigned short fs_u16;
typedef unsigned int fs_u32;
typedef unsigned long long fs_u64;

#define FS_ABI_VERSION 1
#define FS_MAX_GPUS 32
/* GPUs and MIG instances that are told apart, each with clocks of its own. */
#define FS_MAX_SLOTS 64
/* All may be busy at once on one GPU: as many as n has bits for. */
#define FS_MAX_CTXS 2048
/* Streams told apart in one context; the rest share the last index, which only a context sync closes. */
#define FS_MAX_STREAMS 64
/* Launches of graphs that are kept of each context. A power of two. */
#define FS_KEPT_GRAPHS 16
#define FS_MAX_PROC_CTXS 16
#define FS_MAX_CTX_STACK 4
#define FS_MAX_DEPS 4
#define FS_MAX_USES 16384
#define FS_MAX_PROCS 8192
#define FS_MAX_DEVS (8 * FS_MAX_PROCS) /* ordinals, of as many processes on a node of eight GPUs */
#define FS_MAX_HANDLES 32768
/* Places for marks of events, FS_MARK_WAYS in each, which the tenants have equal parts of. Powers of two. */
#define FS_MARK_PLACES 16384
#define FS_MARK_WAYS 4
#define FS_DELAY_BUCKETS 100
#define FS_EDGE_PAGES 256
#define FS_NO_SLOT 0xffffffffu
#define FS_NO_GPU 0xffffu
/* Ordinal of a context whose creation we have not seen. */
#define FS_ORDINAL_UNSEEN 0xffffffffu
/*
 * Launches closer than TIGHT are one burst; a PAUSE after at least so many of them ends it. Who asks whether work is done
 * without such a pause waits for it.
 */
#define FS_TIGHT_NS 100000
#define FS_PAUSE_NS 500000
#define FS_TIGHT_LAUNCHES 2
/* A context whose last burst began longer ago than this wants the GPU anew. */
#define FS_COMEBACK_NS 250000000
/* How often a process that goes from one cgroup of its tenant to another is followed. */
#define FS_FOLLOW_NS 50000000
/* Tenants that are told apart where the room in a table is given out; 0 stands for whoever is in none. */
#define FS_MAX_OWNERS 4096
#define FS_STRANGERS 0
/* A tenant is looked for at each of the outermost so many levels of a task's cgroup. */
#define FS_MAX_OWNER_LEVELS 16
/* The device gate. A rule is looked up at each of the outermost so many levels of a task's cgroup. */
#define FS_MAX_GATES 16384
#define FS_MAX_GATE_LEVELS 32
#define FS_MAX_CAPS 8192
#define FS_MAX_MAJORS 16
#define FS_GATE_WORDS 4
#define FS_GATE_MAGIC 0x66736761746531ULL

/* clock word: n in the top 12 bits, B in the low 52, V(t) = B + t/n */
#define FS_CLOCK_SHIFT 52
#define FS_CLOCK_MASK ((1ULL << FS_CLOCK_SHIFT) - 1)
#define FS_CLOCK_MAX_N 4095
_Static_assert(FS_MAX_CTXS <= FS_CLOCK_MAX_N, "n");

enum fs_engine {
	FS_COMPUTE = 0,
	FS_COPY = 1,
	FS_ENGINES = 2,
};

enum fs_ctx_flag {
	FS_CTX_LIVE = 1,
	FS_CTX_UNSEEN = 2,      /* created before we attached: its GPU is a guess until user space says */
	FS_CTX_GPU_GUESSED = 4, /* neither the process nor user space has named the GPU of this ordinal */
	FS_CTX_PRIMARY = 8,     /* the one of its device that its process retains: there is no other */
};

/* How many things that should not happen did (law 8). Index of counts_by_what. */
enum fs_count {
	FS_COUNT_CTX_FULL = 0,
	FS_COUNT_USE_FULL = 1,
	FS_COUNT_PROC_FULL = 2,
	FS_COUNT_HANDLE_FULL = 3,
	FS_COUNT_CLOCK_RACE = 4,
	FS_COUNT_CLOCK_RANGE = 5,
	FS_COUNT_EDGE_DROPPED = 6,
	FS_COUNT_STREAM_SHARED = 7,
	FS_COUNT_CALL_LOST = 8,
	FS_COUNT_BAD_READ = 9,
	FS_COUNT_GPU_GUESSED = 10,
	FS_COUNT_EVENT_UNKNOWN = 11,
	FS_COUNT_DEP_DROPPED = 12,
	FS_COUNT_STREAM_FULL = 13, /* the index of a stream could not be kept: it will get another */
	FS_COUNT_THREAD_FULL = 14, /* which context a thread works in could not be kept */
	FS_COUNT_STACK_DEEP = 15,  /* more contexts pushed than are kept: one below is forgotten */
	FS_COUNT_SLOT_LOST = 16,   /* a slot could not be given back */
	FS_COUNT_EXIT_MISSED = 17, /* a context of a process that was gone was found by user space */
	FS_COUNT_OVER_BUDGET = 18, /* a tenant wanted more than its part: fs_budget */
	FS_COUNTS = 19,
};

enum fs_edge_kind {
	FS_EDGE_OPEN = 1,
	FS_EDGE_CLOSE = 2,
	FS_EDGE_PROC_NEW = 3,
	FS_EDGE_PROC_EXIT = 4,
	FS_EDGE_GPU_IDLE = 5,
	FS_EDGE_PROGRESS = 6, /* a call proved more of the work complete, but did not end the interval */
	FS_EDGE_CTX_NEW = 7,
	FS_EDGE_CTX_GONE = 8,
	FS_EDGE_RESUBMIT = 9, /* a new burst of a context that never asks: the one before is over */
};

/* What a tenant has a budget of. */
enum fs_table {
	FS_TABLE_CONTEXTS = 0,
	FS_TABLE_PROCESSES = 1,
	FS_TABLE_CLIENTS = 2, /* of the driver, and the files they were made through */
	FS_TABLE_OBJECTS = 3,
	FS_TABLE_CALLERS = 4, /* processes that call the driver, by the cgroup they called it in */
	FS_TABLE_THREADS = 5, /* that call the driver */
	FS_TABLE_CGROUPS = 6, /* that have VRAM */
	FS_TABLE_PIDS = 7,    /* of processes in PID namespaces */
	FS_TABLE_CALLS = 8,   /* about processes, under way in the driver */
	FS_TABLE_ORDINALS = 9,
	FS_TABLE_EDGES = 10,
	FS_TABLES = 11,
};
#define FS_ENTRY_TABLES 10 /* of these, the ones with entries that end; an edge is gone once it is read */

/* One engine of one context. */
struct fs_busy {
	fs_u64 streams;     /* bit per stream index with outstanding work; 0 = no interval open */
	fs_u64 v_open_ns;   /* V up to which this context has been charged */
	fs_u64 open_ns;     /* CLOCK_MONOTONIC when the interval opened */
	fs_u64 gpu_time_ns; /* charged so far, closed parts only */
	fs_u64 wall_ns;     /* length of all closed intervals */
	fs_u64 bursts;      /* closed intervals */
};
_Static_assert(sizeof(struct fs_busy) == 48, "fs_busy");

struct fs_ctx {
	fs_u64 handle;    /* CUcontext in the process; 0 = unseen */
	fs_u64 cgroup_id; /* who is charged */
	fs_u32 tgid;
	fs_u32 generation; /* of the slot: a reused slot is another context */
	fs_u16 gpu;        /* index into clock_by_gpu, below FS_MAX_SLOTS */
	fs_u16 flags;      /* enum fs_ctx_flag */
	fs_u32 ordinal;    /* CUDA device ordinal inside the process */
	fs_u64 submitted;  /* GPU work submitted; the sequence number of the last one */
	fs_u64 completed;  /* highest sequence number proven complete, in whichever stream */
	fs_u64 proven;     /* compute up to here is proven complete in every stream that is asked about */
	fs_u64 counted;    /* of submitted, already added to gpu_time_by_key */
	fs_u64 synced;     /* calls that proved completion */
	fs_u64 last_call_ns;
	fs_u64 waited_ns;   /* how long the call that last proved completion had waited; 0 = no such call */
	fs_u64 tight;       /* launches in quick succession, while completion was never asked for */
	fs_u64 stream_used; /* stream indexes given out */
	fs_u64 blocking;    /* of these, the ones the legacy default stream waits for */
	fs_u64 asked;       /* and the ones that a call proved which asked for just that stream */
	fs_u64 charged_id;  /* the cgroup of the tenant that is charged; cgroup_id where there is none */
	fs_u32 owner;       /* whose entry of ctx_by_slot this is */
	fs_u32 room;        /* enum fs_room: out of which it was given */
	fs_u64 followed_ns; /* when it was last found in another cgroup */
	fs_u64 muted;       /* bit per engine: the edge that opened its interval was not let through */
	struct fs_busy busy[FS_ENGINES];
};
_Static_assert(sizeof(struct fs_ctx) == 248, "fs_ctx");

struct fs_graph_launch {
	fs_u64 seq;    /* of the launch */
	fs_u64 handle; /* CUgraphExec in the process */
};
_Static_assert(sizeof(struct fs_graph_launch) == 16, "fs_graph_launch");

/* Which graphs a context launched last. Of latest the first `total` places are in use, up to all. */
struct fs_graphs {
	fs_u64 total;      /* launched since the context exists */
	fs_u32 generation; /* of the slot: of another one it says nothing */
	fs_u32 pad;
	struct fs_graph_launch latest[FS_KEPT_GRAPHS];
};
_Static_assert(sizeof(struct fs_graphs) == 272, "fs_graphs");

/* One GPU. wake_on_idle is written by user space, everything else by BPF. */
struct fs_clock {
	fs_u64 word[FS_ENGINES];
	fs_u64 busy_ns[FS_ENGINES];      /* wall time with n > 0, closed parts only */
	fs_u64 busy_open_ns[FS_ENGINES]; /* when n last rose from 0 */
	fs_u32 wake_on_idle; /* somebody is held back: tell user space at once when n falls below this; 0 = never */
	fs_u32 pad;
};
_Static_assert(sizeof(struct fs_clock) == 56, "fs_clock");

struct fs_use_key {
	fs_u64 cgroup_id;
	fs_u32 tgid;
	fs_u32 gpu;
};
_Static_assert(sizeof(struct fs_use_key) == 16, "fs_use_key");

struct fs_use {
	fs_u64 gpu_time_ns;
	fs_u64 copy_time_ns;
	fs_u64 wait_ns; /* wall busy minus gpu_time: time its work stood in the queue */
	fs_u64 bursts;
	fs_u64 launches;
};
_Static_assert(sizeof(struct fs_use) == 40, "fs_use");

struct fs_delay_key {
	fs_u64 cgroup_id;
	fs_u32 gpu;
	fs_u32 pad;
};
_Static_assert(sizeof(struct fs_delay_key) == 16, "fs_delay_key");

/* Waits for a turn, each in bucket[delay_bucket(ns)] (delay.h). */
struct fs_delay {
	fs_u64 bucket[FS_DELAY_BUCKETS];
	fs_u64 sum_ns;
};
_Static_assert(sizeof(struct fs_delay) == 808, "fs_delay");

struct fs_edge {
	fs_u64 t_ns;
	fs_u64 cgroup_id;
	fs_u64 arg; /* CTX_NEW: the handle; CLOSE, PROGRESS: ns the proving call had waited */
	/* OPEN: sequence number that opened; CLOSE, PROGRESS: highest proven complete; CTX_GONE: highest submitted */
	fs_u64 seq;
	fs_u32 slot;
	fs_u32 generation;
	fs_u32 tgid;
	fs_u16 gpu;
	fs_u8 kind;
	fs_u8 engine;
};
_Static_assert(sizeof(struct fs_edge) == 48, "fs_edge");

struct fs_dev_key {
	fs_u32 tgid;
	fs_u32 ordinal;
};
_Static_assert(sizeof(struct fs_dev_key) == 8, "fs_dev_key");

struct fs_uuid {
	fs_u8 bytes[16];
};
_Static_assert(sizeof(struct fs_uuid) == 16, "fs_uuid");

/* Where the room of an entry came from. */
enum fs_room {
	FS_ROOM_NONE = 0,
	FS_ROOM_OWN = 1,    /* what is kept for its tenant */
	FS_ROOM_SHARED = 2, /* what whoever comes first gets */
};

/* What one tenant has in the tables, and how often it was refused more. */
struct fs_budget {
	fs_u64 used[FS_ENTRY_TABLES];
	fs_u64 refused[FS_TABLES];
	fs_u64 refused_ns[FS_TABLES]; /* when last */
	fs_u64 edges_ns;              /* its edges are paid for up to this moment */
};
_Static_assert(sizeof(struct fs_budget) == 264, "fs_budget");

/* What every tenant may have; written by user space, except shared_used. */
struct fs_limits {
	fs_u64 reserve[FS_ENTRY_TABLES]; /* kept for each tenant */
	fs_u64 ceiling[FS_ENTRY_TABLES]; /* of each tenant, its reserve included */
	fs_u64 shared[FS_ENTRY_TABLES];  /* beyond the reserves, of all tenants together */
	fs_u64 shared_used[FS_ENTRY_TABLES];
	fs_u64 edge_ns;       /* between two edges of a tenant, on average; 0: as many as it likes */
	fs_u64 edge_burst_ns; /* so far ahead of that it may be */
	fs_u64 turn_ns;       /* a slice and a switch of the hardware; 0: not known */
	fs_u64 mark_bits;     /* of a tenant's number: so many parts are the places for marks divided into */
};
_Static_assert(sizeof(struct fs_limits) == 352, "fs_limits");

/* Arguments of on_drain_end, run by user space when a held context's queue must have drained. */
struct fs_drain_args {
	fs_u64 slot;
	fs_u64 generation;
	fs_u64 v_end_ns; /* charge up to this V and close */
	fs_u64 engine;
};
_Static_assert(sizeof(struct fs_drain_args) == 32, "fs_drain_args");

/* Arguments of on_ctx_gone, run by user space for a context whose process is gone. */
struct fs_slot_args {
	fs_u64 slot;
	fs_u64 generation;
};
_Static_assert(sizeof(struct fs_slot_args) == 16, "fs_slot_args");

#include "abi_driver.h"

#endif
