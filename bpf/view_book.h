/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The maps of pid_view.bpf.c, and its book: which process has which number in which PID namespace, and whose job the
 * translation is.
 */
#ifndef FAIRSCHED_VIEW_BOOK_H
#define FAIRSCHED_VIEW_BOOK_H

#include "atomics.h"

#define FS_MMAPABLE 1024 /* BPF_F_MMAPABLE */
#define PID_LEVELS 32    /* MAX_PID_NS_LEVEL */

#define GET_PIDS_SIZE 3812
#define GET_PIDS_COUNT 8 /* the table follows */
#define INFO_SIZE 14408
#define INFO_ITEMS 8
#define INFO_STRIDE 72
#define SAMPLES_ITEMS 16
#define SAMPLES_ENGINES 8 /* offset of the first engine in a sample */
#define SAMPLES_PROC_ID 8 /* offset in an engine's record */
#define MAX_RECORDS (FS_VIEW_SAMPLES_MAX * 6)

#ifdef FS_NO_WRITE /* benchmarks/cost/pid_view.py, where the kernel refuses to write: the same bytes are read */
#define bpf_probe_write_user(to, from, size) bpf_probe_read_user(from, size, to)
#endif

struct rm_control { /* NVOS54 */
	u32 client, object, cmd, flags;
	fs_u64 params;
	u32 size, status;
};

struct rm_xfer {
	u32 nr, size;
	fs_u64 address;
};

/* A call in the driver, from entry to return. */
struct view_call {
	fs_u64 control; /* where the caller's NVOS54 is */
	fs_u64 params;
	u32 ns;
	u32 kind;
	u32 size;  /* of the parameters */
	u32 owner; /* whose entry of view_by_thread it is */
	u32 room;
	u32 pad;
};

/* A question as the caller put it and as the driver saw it. */
struct view_question {
	u32 count;
	u32 written; /* of these, replaced in the caller's memory */
	u32 asked[FS_VIEW_INFO_MAX];
	u32 put[FS_VIEW_INFO_MAX];
};

/* A set of samples as the size of the parameters tells it. */
struct view_samples {
	u32 engines; /* records in a sample */
	u32 record;  /* bytes of one */
	u32 stride;
	u32 records; /* in all */
};

/*
 * What the loops over an answer work on. In memory and not in registers, where each way to a value would be
 * another state for the verifier to follow.
 */
struct view_scratch {
	u32 count;     /* this and the next are pidTblCount and pidTbl of an answer, */
	u32 pid[1024]; /* with room up to a power of two */
	u32 given;     /* items before, */
	u32 kept;      /* and after */
	struct view_samples samples;
};
#define LIST_BYTES (4 + 4 * FS_VIEW_LIST_MAX)
/* Read anew: verifiers before 5.16 forget the limits of a number that was put aside on the stack. */
#define ANEW(number) (*(volatile u32 *)&(number))

struct caller {
	fs_u64 task;
	u32 level; /* of its PID namespace below the initial one */
	u32 ns;
	u32 tgid; /* in the initial namespace */
};

/* Written by BPF and, before the hooks are attached, by user space; read by user space. */
BPF_F_TABLE("array", u32, fs_u64, translator_by, FS_VIEW_KINDS, FS_MMAPABLE);
BPF_F_TABLE("array", u32, fs_u64, view_counts, FS_VIEW_COUNTS, FS_MMAPABLE);
/* Written by BPF and, for processes older than this program, by user space. An entry ends with its process. */
BPF_HASH(nr_by_tgid, struct fs_pid_key, struct fs_pid_nr, FS_MAX_VIEW_PIDS + FS_MAX_VIEW_OLDER);
BPF_HASH(tgid_by_nr, struct fs_pid_key, u32, FS_MAX_VIEW_PIDS + FS_MAX_VIEW_OLDER);
/* Private; an entry ends with the call, or with the thread. */
BPF_HASH(view_by_thread, fs_u64, struct view_call, FS_MAX_VIEW_CALLS);
BPF_HASH(asked_by_thread, fs_u64, struct view_question, FS_MAX_VIEW_CALLS);
/* Too large for the stack. The first is never written. */
BPF_ARRAY(zero_question, struct view_question, 1);
BPF_PERCPU_ARRAY(view_scratch, struct view_scratch, 1);
/* The programs that deal with the answers, by kind; filled once by user space. */
BPF_PROG_ARRAY(answer_by_kind, FS_VIEW_KINDS);

static __always_inline void note(u32 what, fs_u64 times)
{
	fs_u64 *n = view_counts.lookup(&what);

	if (n && times)
		__sync_fetch_and_add(n, times);
}

static __always_inline void count_over_budget(void)
{
	note(FS_VIEW_COUNT_OVER_BUDGET, 1);
}

#include "budget.h"

static __always_inline fs_u64 kernel_u64(fs_u64 address)
{
	fs_u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

static __always_inline u32 kernel_u32(fs_u64 address)
{
	u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)address);
	return value;
}

static __always_inline int user_u32(u32 *value, fs_u64 address)
{
	if (!bpf_probe_read_user(value, sizeof(*value), (void *)address))
		return 0;
	note(FS_VIEW_COUNT_BAD_READ, 1);
	return -1;
}

static __always_inline int write_u32(fs_u64 address, u32 value)
{
	if (!bpf_probe_write_user((void *)address, &value, sizeof(value)))
		return 0;
	note(FS_VIEW_COUNT_BAD_WRITE, 1);
	return -1;
}

/* ---- who is who ---- */

static __always_inline u32 namespace_of(fs_u64 pid, u32 level)
{
	fs_u64 upid = pid + FS_PID_NUMBERS + level * FS_UPID_SIZE;

	return kernel_u32(kernel_u64(upid + FS_UPID_NS) + FS_PIDNS_NS + FS_NS_INUM);
}

/* 0 for a caller in the initial namespace: what the driver says is right for it. */
static __always_inline int find_caller(struct caller *c)
{
	fs_u64 pid;

	c->task = bpf_get_current_task();
	pid = kernel_u64(c->task + FS_TASK_THREAD_PID);
	c->level = pid ? kernel_u32(pid + FS_PID_LEVEL) : 0;
	if (!c->level || c->level > PID_LEVELS)
		return 0;
	c->ns = namespace_of(pid, c->level);
	c->tgid = bpf_get_current_pid_tgid() >> 32;
	return 1;
}

/* One number of a process. What its tenant has no room for is not written down. */
static __always_inline void write_down(struct fs_pid_key by_tgid, struct fs_pid_key by_nr, u32 owner)
{
	struct fs_pid_nr fresh = {.nr = by_nr.pid, .owner = owner};

	if (nr_by_tgid.lookup(&by_tgid))
		return;
	fresh.room = take_room(owner, FS_TABLE_PIDS);
	if (fresh.room == FS_ROOM_NONE)
		return;
	if (nr_by_tgid.insert(&by_tgid, &fresh)) { /* another thread of it was first, or it is full */
		give_room(owner, FS_TABLE_PIDS, fresh.room);
		if (nr_by_tgid.lookup(&by_tgid))
			return;
		note(FS_VIEW_COUNT_BOOK_FULL, 1);
	} else if (tgid_by_nr.update(&by_nr, &by_tgid.pid)) {
		note(FS_VIEW_COUNT_BOOK_FULL, 1);
	}
}

static __always_inline void strike_out(struct fs_pid_key by_tgid, struct fs_pid_key by_nr)
{
	struct fs_pid_nr *found = nr_by_tgid.lookup(&by_tgid);
	u32 owner, room;

	if (!found)
		return;
	owner = found->owner;
	room = found->room;
	tgid_by_nr.delete(&by_nr);
	if (!nr_by_tgid.delete(&by_tgid))
		give_room(owner, FS_TABLE_PIDS, room);
}

/* Write down, or strike out, the numbers of the caller's process in every namespace that sees it. */
static __always_inline void keep_book(struct caller *c, int is_entry)
{
	fs_u64 pid = kernel_u64(kernel_u64(c->task + FS_TASK_LEADER) + FS_TASK_THREAD_PID);
	u32 owner = is_entry ? find_owner().number : FS_STRANGERS;

	FS_LOOP
	for (u32 level = 1; level <= PID_LEVELS; level++) {
		struct fs_pid_key by_tgid = {.pid = c->tgid}, by_nr = {};

		if (level > c->level)
			break;
		by_tgid.ns = by_nr.ns = namespace_of(pid, level);
		by_nr.pid = kernel_u32(pid + FS_PID_NUMBERS + level * FS_UPID_SIZE + FS_UPID_NR);
		if (is_entry)
			write_down(by_tgid, by_nr, owner);
		else
			strike_out(by_tgid, by_nr);
	}
}

/* The caller is out of its call. */
static __always_inline void drop_call(fs_u64 thread)
{
	struct view_call *found = view_by_thread.lookup(&thread);
	u32 owner, room;

	if (!found)
		return;
	owner = found->owner;
	room = found->room;
	if (!view_by_thread.delete(&thread))
		give_room(owner, FS_TABLE_CALLS, room);
}

/* ---- whose job it is ---- */

static __always_inline u32 translator(u32 kind)
{
	fs_u64 *by = translator_by.lookup(&kind);

	return by ? *by : FS_VIEW_BY_DRIVER;
}

static __always_inline void decide(u32 kind, u32 by)
{
	fs_u64 *now = translator_by.lookup(&kind);

	if (!now || *now == by)
		return;
	if (*now == FS_VIEW_BY_DRIVER) /* for ever: also when another call has found it out meanwhile */
		return;
	if (*now == FS_VIEW_BY_US)
		note(FS_VIEW_COUNT_CONFLICT, 1);
	*now = by;
}

/* Whether a number in an answer cannot be one of the caller's namespace. 0 and ~0 stand for no process. */
static __always_inline int is_foreign(u32 ns, u32 pid)
{
	struct fs_pid_key key = {.ns = ns, .pid = pid};

	return pid && pid != FS_VIEW_NO_PID && !tgid_by_nr.lookup(&key);
}

#endif
