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
#define FS_MAX_CTXS 1024
/* Streams told apart in one context; the rest share the last index, which only a context sync closes. */
#define FS_MAX_STREAMS 64
#define FS_MAX_PROC_CTXS 16
#define FS_MAX_CTX_STACK 4
#define FS_MAX_DEPS 4
#define FS_MAX_USES 16384
#define FS_MAX_PROCS 8192
#define FS_MAX_HANDLES 32768
#define FS_DELAY_BUCKETS 40
#define FS_EDGE_PAGES 256
#define FS_NO_SLOT 0xffffffffu
#define FS_NO_GPU 0xffffu
/* Ordinal of a context whose creation we have not seen. */
#define FS_ORDINAL_UNSEEN 0xffffffffu
/* Launches closer than TIGHT are one burst; a PAUSE after at least so many of them ends it. */
#define FS_TIGHT_NS 100000
#define FS_PAUSE_NS 500000
#define FS_TIGHT_LAUNCHES 2
/* A context whose last burst began longer ago than this wants the GPU anew. */
#define FS_COMEBACK_NS 250000000
/* The device gate. A rule is looked up at each of the outermost so many levels of a task's cgroup. */
#define FS_MAX_GATES 16384
#define FS_MAX_GATE_LEVELS 32
#define FS_MAX_CAPS 8192
#define FS_MAX_MAJORS 16
#define FS_GATE_WORDS 4
#define FS_GATE_MAGIC 0x66736761746531ULL

/* clock word: n in the top 8 bits, B in the low 56, V(t) = B + t/n */
#define FS_CLOCK_SHIFT 56
#define FS_CLOCK_MASK ((1ULL << FS_CLOCK_SHIFT) - 1)
#define FS_CLOCK_MAX_N 255

enum fs_engine {
	FS_COMPUTE = 0,
	FS_COPY = 1,
	FS_ENGINES = 2,
};

enum fs_ctx_flag {
	FS_CTX_LIVE = 1,
	FS_CTX_UNSEEN = 2,      /* created before we attached: its GPU is a guess until user space says */
	FS_CTX_GPU_GUESSED = 4, /* neither the process nor user space has named the GPU of this ordinal */
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
	FS_COUNTS = 17,
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
	fs_u16 gpu;        /* index into clock_by_gpu */
	fs_u16 flags;      /* enum fs_ctx_flag */
	fs_u32 ordinal;    /* CUDA device ordinal inside the process */
	fs_u64 submitted;  /* GPU work submitted; the sequence number of the last one */
	fs_u64 completed;  /* highest sequence number proven complete */
	fs_u64 counted;    /* of submitted, already added to gpu_time_by_key */
	fs_u64 synced;     /* calls that proved completion */
	fs_u64 last_call_ns;
	fs_u64 waited_ns;   /* how long the call that last proved completion had waited; 0 = no such call */
	fs_u64 tight;       /* launches in quick succession, while completion was never asked for */
	fs_u64 stream_used; /* stream indexes given out */
	fs_u64 blocking;    /* of these, the ones the legacy default stream waits for */
	struct fs_busy busy[FS_ENGINES];
};
_Static_assert(sizeof(struct fs_ctx) == 200, "fs_ctx");

/* One GPU. wake_on_idle is written by user space, everything else by BPF. */
struct fs_clock {
	fs_u64 word[FS_ENGINES];
	fs_u64 busy_ns[FS_ENGINES];      /* wall time with n > 0, closed parts only */
	fs_u64 busy_open_ns[FS_ENGINES]; /* when n last rose from 0 */
	fs_u32 wake_on_idle; /* somebody is held back: tell user space at once when n falls to 0 */
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

/* bucket[i] counts bursts whose wait was in [2^i, 2^(i+1)) ns; bucket 0 also holds waits below 1 ns. */
struct fs_delay {
	fs_u64 bucket[FS_DELAY_BUCKETS];
	fs_u64 sum_ns;
};
_Static_assert(sizeof(struct fs_delay) == 328, "fs_delay");

struct fs_edge {
	fs_u64 t_ns;
	fs_u64 cgroup_id;
	fs_u64 arg; /* CTX_NEW: the handle; CLOSE, PROGRESS: ns the proving call had waited */
	fs_u64 seq; /* OPEN: sequence number that opened; CLOSE, PROGRESS: highest proven complete */
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

/* Arguments of on_drain_end, run by user space when a held context's queue must have drained. */
struct fs_drain_args {
	fs_u64 slot;
	fs_u64 generation;
	fs_u64 v_end_ns; /* charge up to this V and close */
	fs_u64 engine;
};
_Static_assert(sizeof(struct fs_drain_args) == 32, "fs_drain_args");

/* ---- nvidia_ioctl.bpf.c: who holds what of the driver ---- */

#define FS_MAX_CLIENTS 8192
#define FS_MAX_OBJECTS 131072
#define FS_MAX_FILE_CLIENTS 16
#define FS_MAX_CALLERS 16384
/* Levels between an object and its client; the driver's trees have four. */
#define FS_MAX_DEPTH 8
/* Index of a GPU that is not known, in arrays that have one more than FS_MAX_GPUS. */
#define FS_GPU_UNKNOWN 32
#define FS_GPUS_HELD 33
#define FS_MAX_MAJOR 4096
/* Levels of cgroups, the root not counted. */
#define FS_MAX_CGROUP_DEPTH 12
#define FS_MAX_VRAM_CGROUPS 8192
/* Cgroups of one tenant whose memory is added up for its limit, and limits that one allocation has to keep. */
#define FS_MAX_LIMIT_CGROUPS 32
#define FS_MAX_LIMIT_LEVELS 3

/* Index of driver_counts. */
enum fs_driver_count {
	FS_DRIVER_COUNT_OBJECTS_MADE = 0,
	FS_DRIVER_COUNT_OBJECTS_GONE = 1,
	FS_DRIVER_COUNT_BAD_READ = 2,  /* user memory that could not be read */
	FS_DRIVER_COUNT_CALL_FULL = 3, /* no room to remember a call: its outcome was not seen */
	FS_DRIVER_COUNT_CALL_LOST = 4, /* a return was not seen */
	FS_DRIVER_COUNT_CLIENT_FULL = 5,
	FS_DRIVER_COUNT_OBJECT_FULL = 6,
	FS_DRIVER_COUNT_FILE_FULL = 7,
	FS_DRIVER_COUNT_HELD_FULL = 8,
	FS_DRIVER_COUNT_CALLER_FULL = 9,
	FS_DRIVER_COUNT_UNSEEN = 10,      /* made below something made before we looked: not counted */
	FS_DRIVER_COUNT_GPU_UNKNOWN = 11, /* a device whose number nobody has explained */
	FS_DRIVER_COUNT_TOO_DEEP = 12,
	FS_DRIVER_COUNT_REPLACED = 13, /* a handle given out anew whose free we have not seen */
	FS_DRIVER_COUNT_RACE = 14,
	FS_DRIVER_COUNT_BAD_SIZE = 15, /* more than a GPU can have */
	FS_DRIVER_COUNT_BLIND = 16,    /* done or not: the driver could not write into the caller's memory */
	FS_DRIVER_COUNT_VRAM_FULL = 17,
	FS_DRIVER_COUNT_DEEP_CGROUP = 18, /* its deepest levels have no VRAM sum of their own */
	FS_DRIVER_COUNT_FOREIGN = 19, /* a change to what another process has: the caller forged the answer */
	FS_DRIVER_COUNTS = 20,
};

struct fs_object_key {
	fs_u32 client;
	fs_u32 handle;
};
_Static_assert(sizeof(struct fs_object_key) == 8, "fs_object_key");

/* An object of the driver. Its sums are of itself and of all below it. */
struct fs_object {
	fs_u64 serial; /* CLOCK_MONOTONIC ns when it was entered: tells those that had the same handle apart */
	fs_u64 parent_serial;
	fs_u64 vram_bytes;
	fs_u64 computes; /* compute objects */
	fs_u64 contexts; /* channel groups with a compute object */
	fs_u32 parent;   /* handle */
	fs_u32 class;
	fs_u32 gpu;
	fs_u32 is_group; /* a channel group, or a channel without one */
};
_Static_assert(sizeof(struct fs_object) == 56, "fs_object");

/* Can be less than 0 for a moment, while two calls of one client end at the same time. */
struct fs_held {
	fs_u64 vram_bytes;
	fs_u64 contexts;
};
_Static_assert(sizeof(struct fs_held) == 16, "fs_held");

struct fs_client {
	fs_u64 serial;
	fs_u64 file; /* struct file it was made through */
	fs_u64 file_serial;
	fs_u64 cgroup_id;
	fs_u64 is_gone;
	fs_u32 tgid;
	fs_u32 handle;
	struct fs_held held[FS_GPUS_HELD];
	fs_u64 above[FS_MAX_CGROUP_DEPTH]; /* cgroup_id and those above it, the highest first; 0 = no more */
	fs_u64 freed[FS_MAX_GPUS];         /* VRAM that it had when it ended, as what is added above */
};
_Static_assert(sizeof(struct fs_client) == 928, "fs_client");

/* VRAM of the processes of a cgroup and of all cgroups below it. */
struct fs_cgroup_vram {
	fs_u64 bytes[FS_MAX_GPUS];
	fs_u64 begun; /* times that something began to be taken from it, and that this was done */
	fs_u64 ended;
};
_Static_assert(sizeof(struct fs_cgroup_vram) == 272, "fs_cgroup_vram");

/*
 * How much VRAM a tenant may have on each GPU. Every cgroup that is the top of one of its subtrees has the same:
 * what counts is the sum over all of them.
 */
struct fs_vram_limit {
	fs_u64 bytes;
	fs_u64 above;                        /* a cgroup with the limit of the tenant above; 0 = none */
	fs_u64 tenant;                       /* a number of user space's */
	fs_u64 cgroup[FS_MAX_LIMIT_CGROUPS]; /* 0 = no more */
};
_Static_assert(sizeof(struct fs_vram_limit) == 280, "fs_vram_limit");

struct fs_refusal_key {
	fs_u64 tenant;
	fs_u32 gpu;
	fs_u32 pad;
};
_Static_assert(sizeof(struct fs_refusal_key) == 16, "fs_refusal_key");

/* Allocations refused for a limit; the last one for display. */
struct fs_refusal {
	fs_u64 refused;
	fs_u64 t_ns;
	fs_u64 asked_bytes;
	fs_u64 held_bytes;
	fs_u64 tgid;
};
_Static_assert(sizeof(struct fs_refusal) == 40, "fs_refusal");

/* Handles of the clients made through one file; 0 = free. */
struct fs_file {
	fs_u64 serial; /* tells files that had the same address apart */
	fs_u64 client[FS_MAX_FILE_CLIENTS];
};
_Static_assert(sizeof(struct fs_file) == 136, "fs_file");

struct fs_caller {
	fs_u64 cgroup_id;
	fs_u32 tgid;
	fs_u32 pad;
};
_Static_assert(sizeof(struct fs_caller) == 16, "fs_caller");

/* Calls to the driver: open and ioctl of its devices. */
struct fs_calls {
	fs_u64 ioctls;
	fs_u64 failed;  /* of these: an errno, or a status other than NV_OK */
	fs_u64 time_ns; /* in ioctls, waiting included */
	fs_u64 opens;   /* not seen by the tracepoint hook */
};
_Static_assert(sizeof(struct fs_calls) == 32, "fs_calls");

/* What the minors of an NVIDIA major are. */
enum fs_node {
	FS_NODE_GPU = 1,   /* 195: the minor is the GPU's, 255 nvidiactl, 254 nvidia-modeset */
	FS_NODE_UVM = 2,   /* 0 nvidia-uvm, 1 nvidia-uvm-tools */
	FS_NODE_CAPS = 3,  /* MIG and other capabilities */
	FS_NODE_OTHER = 4, /* the driver's, and of no single GPU */
};

/* Where device nodes are plain files (the simulated GPU). */
struct fs_inode {
	fs_u64 device;
	fs_u64 inode;
};
_Static_assert(sizeof(struct fs_inode) == 16, "fs_inode");

/* Arguments of on_client_gone, run by user space. */
struct fs_gone_args {
	fs_u64 client;
	fs_u64 serial;
};
_Static_assert(sizeof(struct fs_gone_args) == 16, "fs_gone_args");

/* ---- pid_view.bpf.c: process lists of the driver in the caller's pids ---- */

#define FS_MAX_VIEW_PIDS 16384
#define FS_MAX_VIEW_CALLS 512
#define FS_VIEW_LIST_MAX 950
#define FS_VIEW_INFO_MAX 200
#define FS_VIEW_SAMPLES_MAX 72
/* The driver's mark for "no process" in a sample. */
#define FS_VIEW_NO_PID 0xffffffffu
/* What is asked about instead of a process the caller cannot see: no pid is above 2^22, and 0 is an error. */
#define FS_VIEW_NOBODY 0x7fffffffu

/* Index of translator_by: whose job a kind of call is, decided for each by itself. */
enum fs_view_kind {
	FS_VIEW_KIND_LIST = 0,
	FS_VIEW_KIND_INFO = 1,
	FS_VIEW_KIND_SAMPLES = 2,
	FS_VIEW_KINDS = 3,
};

enum fs_view_by {
	FS_VIEW_BY_UNDECIDED = 0, /* nothing is touched */
	FS_VIEW_BY_US = 1,        /* the driver speaks in pids of the initial namespace */
	FS_VIEW_BY_DRIVER = 2,    /* it speaks in the caller's: for ever after the first sign of it */
};

/* Index of view_counts. */
enum fs_view_count {
	FS_VIEW_COUNT_LISTS = 0,   /* answers translated */
	FS_VIEW_COUNT_INFOS = 1,   /* questions translated */
	FS_VIEW_COUNT_SAMPLES = 2, /* answers translated */
	FS_VIEW_COUNT_HIDDEN = 3,  /* pids of processes the caller cannot see, taken out */
	FS_VIEW_COUNT_BOOK_FULL = 4,
	FS_VIEW_COUNT_CALL_FULL = 5,
	FS_VIEW_COUNT_BAD_READ = 6,
	FS_VIEW_COUNT_BAD_WRITE = 7,
	FS_VIEW_COUNT_BAD_NUMBER = 8,  /* more items than the driver can give */
	FS_VIEW_COUNT_RETURN_LOST = 9, /* no kretprobe was free: the answer went out as the driver gave it */
	FS_VIEW_COUNT_CONFLICT = 10,   /* the driver translated a kind that was taken to be ours */
	FS_VIEW_COUNT_CHANGED = 11,    /* the caller changed its question while it was asked */
	FS_VIEW_COUNTS = 12,
};

/* A process by its number in one PID namespace, or a namespace's view of a process: both maps use it. */
struct fs_pid_key {
	fs_u32 ns;  /* inode number of the namespace */
	fs_u32 pid; /* nr_by_tgid: tgid in the initial namespace; tgid_by_nr: in this one */
};
_Static_assert(sizeof(struct fs_pid_key) == 8, "fs_pid_key");

/* ---- device_gate.bpf.c ---- */

enum fs_gate_flag {
	FS_GATE_ALL = 1, /* every NVIDIA device, also those of GPUs that come later */
};

/* What a cgroup and everything below it may open. */
struct fs_gate {
	fs_u64 gpus[FS_GATE_WORDS]; /* bit per device minor */
	fs_u32 flags;               /* enum fs_gate_flag */
	fs_u32 pad;
};
_Static_assert(sizeof(struct fs_gate) == 40, "fs_gate");

/* Says whose program this is and what it was made of: another daemon takes over only its like. */
struct fs_gate_head {
	fs_u64 magic;
	fs_u64 owner;    /* which fairsched of this machine, by its run_dir */
	fs_u8 build[16]; /* digest of the source */
	fs_u64 denied;   /* opens refused */
	fs_u64 blind;    /* opens let through because the cgroup of the task could not be read */
};
_Static_assert(sizeof(struct fs_gate_head) == 48, "fs_gate_head");

#endif
