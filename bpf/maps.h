/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every map of the GPU time programs, with who writes it, who reads it and when an entry ends (README.md has
 * the table). Private structs are here too; the shared ones are in abi.h.
 */
#ifndef FAIRSCHED_MAPS_H
#define FAIRSCHED_MAPS_H

#include "clock.h"

#define FS_MMAPABLE 1024 /* BPF_F_MMAPABLE */
#define FS_NO_PREALLOC 1 /* BPF_F_NO_PREALLOC */
#define FS_NO_INDEX 0xffffffffu
/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, the handles that stand for the two default streams */
#define FS_STREAM_LEGACY 1
#define FS_STREAM_PER_THREAD 2

struct handle_key {
	fs_u64 handle;
	fs_u32 tgid;
	fs_u32 pad;
};

struct stream_key {
	fs_u64 handle;
	fs_u32 slot;
	fs_u32 generation;
	fs_u32 tid; /* only for the per-thread default stream */
	fs_u32 pad;
};

/* A place in the work of a context: "everything stream `index` was given up to `seq`". */
struct mark {
	fs_u64 seq;
	fs_u32 slot;
	fs_u32 generation;
	fs_u32 index;
	fs_u32 waits; /* of these, how many cuStreamWaitEvent: they take no sequence number */
};

/* Of those events of one tenant that fall into one place; the one that was used least recently is written over. */
struct marks {
	struct {
		struct handle_key key; /* a handle of 0: free */
		struct mark mark;
		fs_u64 used_ns;
	} way[FS_MARK_WAYS];
};

/* Sequence numbers by stream. */
struct seqs {
	fs_u64 last[FS_MAX_STREAMS];    /* of its last work */
	fs_u64 compute[FS_MAX_STREAMS]; /* of its last compute */
	fs_u64 first[FS_MAX_STREAMS];   /* of its compute, the first that is not proven; 0: all is */
};

/* cuStreamWaitEvent: work after `at` on this stream implies `on` is complete. */
struct dep {
	fs_u64 at;
	struct mark on;
};

struct deps {
	struct dep dep[FS_MAX_DEPS];
	fs_u64 next;
};

struct proc {
	fs_u64 slot[FS_MAX_PROC_CTXS]; /* slot + 1; 0 = free */
	fs_u64 whose;                  /* owner << 8 | enum fs_room; 0 = not yet */
	fs_u32 is_told;                /* user space knows of it, and is told of its end */
	fs_u32 is_refused;             /* it has contexts that are not told apart */
	fs_u32 gpu[FS_MAX_GPUS];       /* by ordinal, as it said itself: GPU + 1; 0 = it has not */
};

struct ctx_stack {
	fs_u64 handle[FS_MAX_CTX_STACK];
	fs_u64 depth;
};

/* What a thread asked when it entered a call whose answer matters. */
struct call {
	fs_u64 kind;
	fs_u64 arg;        /* handle, or the user pointer the answer is written to */
	fs_u64 arg2;       /* ordinal, flags, or when a sync was entered */
	fs_u64 refused_ns; /* when it returned an error or NOT_READY; 0 = it did not */
	struct mark mark;
};

/* Written here, read by user space through mmap. A slot returns to free_slots when its context dies. */
BPF_F_TABLE("array", u32, struct fs_ctx, ctx_by_slot, FS_MAX_CTXS, FS_MMAPABLE);
BPF_F_TABLE("array", u32, struct fs_graphs, graphs_by_slot, FS_MAX_CTXS, FS_MMAPABLE);
BPF_F_TABLE("array", u32, struct fs_clock, clock_by_gpu, FS_MAX_SLOTS, FS_MMAPABLE);
BPF_F_TABLE("array", u32, fs_u64, counts_by_what, FS_COUNTS, FS_MMAPABLE);
/* Written here, read by user space one batch a tick; user space deletes the entries of dead processes. */
BPF_HASH(gpu_time_by_key, struct fs_use_key, struct fs_use, FS_MAX_USES);
BPF_HASH(delay_by_key, struct fs_delay_key, struct fs_delay, 4096);
/*
 * Written by user space: what it knows of ordinals and UUIDs. What a process says itself is in its struct proc. The
 * all-zero UUID stands for every GPU that is not named: FS_NO_GPU, its work is not accounted. It is not there where a
 * GPU is in MIG mode, as instances come and go: then user space says.
 */
BPF_F_TABLE("hash", struct fs_dev_key, u32, gpu_by_dev, FS_MAX_DEVS, FS_NO_PREALLOC);
BPF_HASH(gpu_by_uuid, struct fs_uuid, u32, 2 * FS_MAX_SLOTS);
/* Filled once by user space with every slot number. */
BPF_QUEUESTACK("stack", free_slots, u32, FS_MAX_CTXS, 0);
/* Private. LRU where user code controls the number of keys: the oldest handle is forgotten, nothing breaks. */
BPF_HASH(ctx_by_handle, struct handle_key, u32, 2 * FS_MAX_CTXS);
BPF_HASH(proc_by_tgid, u32, struct proc, FS_MAX_PROCS);
BPF_ARRAY(seqs_by_slot, struct seqs, FS_MAX_CTXS);
BPF_TABLE("lru_hash", struct stream_key, u32, index_by_stream, FS_MAX_HANDLES);
BPF_ARRAY(marks_by_place, struct marks, FS_MARK_PLACES);
BPF_TABLE("lru_hash", struct mark, struct deps, deps_by_stream, 4096);
BPF_TABLE("lru_hash", u64, struct ctx_stack, ctxs_by_thread, FS_MAX_HANDLES);
BPF_TABLE("lru_hash", u64, struct call, call_by_thread, FS_MAX_HANDLES);
BPF_RINGBUF_OUTPUT(edges, FS_EDGE_PAGES);
/* Initial values too large for the 512 bytes of BPF stack. Never written. */
BPF_ARRAY(zero_delay, struct fs_delay, 1);
BPF_ARRAY(zero_deps, struct deps, 1);
BPF_ARRAY(zero_proc, struct proc, 1);

/* The first work of a context or stream takes the long way, once: it keeps every other launch short. */
BPF_PROG_ARRAY(long_ways, 1);
#define LONG_WAY_SUBMIT 0
#define NO_WAY 1 /* past the end: the call fails, and the program goes on */

/*
 * Every program on a uprobe begins with this. Since Linux 6.13 a program may be given a stack of its own for each
 * processor, which is sound for programs that nothing interrupts. A uprobe's can be preempted (PREEMPT_LAZY and
 * fuller models), another task then runs the same program on the same stack, and the first goes on with what that one
 * left there: on 7.2 on_sync_return followed a NULL pointer in the kernel. A program with a tail call in it stays on
 * the task's stack.
 */
static __always_inline void stay_on_stack(struct pt_regs *ctx)
{
	long_ways.call(ctx, NO_WAY);
}

static __always_inline void count(u32 what)
{
	fs_u64 *n = counts_by_what.lookup(&what);

	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline void count_over_budget(void)
{
	count(FS_COUNT_OVER_BUDGET);
}

#endif
