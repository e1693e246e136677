/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The part of abi.h that is about NVIDIA's driver: its objects and calls, its process lists, its device nodes. To be
 * included by abi.h alone, whose rules hold here, too.
 */
#ifndef FAIRSCHED_ABI_DRIVER_H
#define FAIRSCHED_ABI_DRIVER_H

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
	FS_DRIVER_COUNT_OVER_BUDGET = 8, /* a tenant wanted more than its part: fs_budget */
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
	fs_u32 owner;    /* whose entry this is, here and below */
	fs_u32 room;     /* enum fs_room: out of which it was given */
};
_Static_assert(sizeof(struct fs_object) == 64, "fs_object");

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
	fs_u32 owner;
	fs_u32 room;
	struct fs_held held[FS_GPUS_HELD];
	fs_u64 above[FS_MAX_CGROUP_DEPTH]; /* cgroup_id and those above it, the highest first; 0 = no more */
	fs_u64 freed[FS_MAX_GPUS];         /* VRAM that it had when it ended, as what is added above */
};
_Static_assert(sizeof(struct fs_client) == 936, "fs_client");

/* VRAM of the processes of a cgroup and of all cgroups below it. */
struct fs_cgroup_vram {
	fs_u64 bytes[FS_MAX_GPUS];
	fs_u64 begun; /* times that something began to be taken from it, and that this was done */
	fs_u64 ended;
	fs_u32 owner;
	fs_u32 room;
};
_Static_assert(sizeof(struct fs_cgroup_vram) == 280, "fs_cgroup_vram");

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
	fs_u32 owner;
	fs_u32 room;
};
_Static_assert(sizeof(struct fs_file) == 144, "fs_file");

/* A process that made a client. */
struct fs_maker {
	fs_u64 gone_ns; /* when it exited or became another program; 0 = not yet */
	fs_u32 owner;
	fs_u32 room;
	fs_u32 is_partial; /* it has more than is in the books, as its tenant had no room for that */
	fs_u32 pad;
};
_Static_assert(sizeof(struct fs_maker) == 24, "fs_maker");

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
	fs_u32 owner;
	fs_u32 room;
};
_Static_assert(sizeof(struct fs_calls) == 40, "fs_calls");

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

/* What on_forgotten deletes. */
enum fs_entry {
	FS_ENTRY_OBJECT = 0,
	FS_ENTRY_FILE = 1, /* one without clients */
	FS_ENTRY_MAKER = 2,
	FS_ENTRY_CALLS = 3,
	FS_ENTRY_THREAD = 4,
	FS_ENTRY_CGROUP = 5,
};

/* Arguments of on_forgotten, run by user space. */
struct fs_forgotten_args {
	fs_u64 entry;  /* enum fs_entry */
	fs_u64 key;    /* of the map; the cgroup of calls, the client of an object */
	fs_u64 more;   /* the process of calls, the handle of an object */
	fs_u64 serial; /* of an object or file */
};
_Static_assert(sizeof(struct fs_forgotten_args) == 32, "fs_forgotten_args");

/* ---- pid_view.bpf.c: process lists of the driver in the caller's pids ---- */

#define FS_MAX_VIEW_PIDS 16384
#define FS_MAX_VIEW_OLDER \
	8192 /* numbers of processes that were there before us: nobody is charged for them */
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
	FS_VIEW_COUNT_BAD_NUMBER = 8,   /* more items than the driver can give */
	FS_VIEW_COUNT_RETURN_LOST = 9,  /* no kretprobe was free: the answer went out as the driver gave it */
	FS_VIEW_COUNT_CONFLICT = 10,    /* the driver translated a kind that was taken to be ours */
	FS_VIEW_COUNT_CHANGED = 11,     /* the caller changed its question while it was asked */
	FS_VIEW_COUNT_OVER_BUDGET = 12, /* a tenant wanted more than its part: fs_budget */
	FS_VIEW_COUNTS = 13,
};

/* A process by its number in one PID namespace, or a namespace's view of a process: both maps use it. */
struct fs_pid_key {
	fs_u32 ns;  /* inode number of the namespace */
	fs_u32 pid; /* nr_by_tgid: tgid in the initial namespace; tgid_by_nr: in this one */
};
_Static_assert(sizeof(struct fs_pid_key) == 8, "fs_pid_key");

struct fs_pid_nr {
	fs_u32 nr;
	fs_u32 owner;
	fs_u32 room;
	fs_u32 pad;
};
_Static_assert(sizeof(struct fs_pid_nr) == 16, "fs_pid_nr");

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
