/* SPDX-License-Identifier: GPL-2.0-only */
/* What pid_view.bpf.c does to the three kinds of calls. */
#ifndef FAIRSCHED_VIEW_CALLS_H
#define FAIRSCHED_VIEW_CALLS_H

#include "view_book.h"

/* ---- the list ---- */

/*
 * Both signs have to agree before anything is rewritten: the driver translated nothing, and it said a number that
 * it could not have said if it had. A list of initial pids is what its other calls deal in, too.
 */
static __always_inline int is_list_ours(struct view_call *call, struct view_scratch *v)
{
	u32 foreign = 0, by = translator(FS_VIEW_KIND_LIST);

	if (by != FS_VIEW_BY_UNDECIDED)
		return by == FS_VIEW_BY_US;
	FS_LOOP
	for (u32 i = 0; i < FS_VIEW_LIST_MAX; i++) {
		if (i >= ANEW(v->given))
			break;
		if (is_foreign(call->ns, v->pid[i])) {
			foreign = 1;
			break;
		}
	}
	if (!foreign)
		return 0;
	decide(FS_VIEW_KIND_LIST, FS_VIEW_BY_US);
	if (translator(FS_VIEW_KIND_INFO) == FS_VIEW_BY_UNDECIDED)
		decide(FS_VIEW_KIND_INFO, FS_VIEW_BY_US);
	return 1;
}

static __always_inline void answer_list(struct view_call *call)
{
	struct fs_pid_key key = {.ns = call->ns};
	int zero = 0;
	struct view_scratch *v = view_scratch.lookup(&zero);
	struct fs_pid_nr *nr;

	if (!v)
		return;
	if (bpf_probe_read_user(v, LIST_BYTES, (void *)(call->params + GET_PIDS_COUNT))) {
		note(FS_VIEW_COUNT_BAD_READ, 1);
		return;
	}
	if (v->count > FS_VIEW_LIST_MAX) {
		note(FS_VIEW_COUNT_BAD_NUMBER, 1);
		return;
	}
	v->given = v->count;
	v->kept = 0;
	if (!v->given || !is_list_ours(call, v))
		return;
	FS_LOOP
	for (u32 i = 0; i < FS_VIEW_LIST_MAX; i++) {
		if (i >= ANEW(v->given))
			break;
		key.pid = v->pid[i];
		v->pid[i] = 0;
		nr = nr_by_tgid.lookup(&key);
		if (nr) {
			v->pid[ANEW(v->kept) & 1023] = nr->nr;
			v->kept++;
		}
	}
	v->count = v->kept;
	if (bpf_probe_write_user((void *)(call->params + GET_PIDS_COUNT), v,
				 4 + 4 * (ANEW(v->given) & 1023))) {
		note(FS_VIEW_COUNT_BAD_WRITE, 1);
		return;
	}
	note(FS_VIEW_COUNT_LISTS, 1);
	note(FS_VIEW_COUNT_HIDDEN, v->given - v->kept);
}

/* ---- the question about processes ---- */

static __always_inline fs_u64 item_at(struct view_call *call, u32 i)
{
	return call->params + INFO_ITEMS + INFO_STRIDE * (fs_u64)i;
}

/* The caller's question as it was, wherever it still is as we left it. */
static __always_inline void take_back(struct view_call *call, struct view_question *q)
{
	u32 now;

	FS_LOOP
	for (u32 i = 0; i < FS_VIEW_INFO_MAX; i++) {
		if (i >= q->written)
			break;
		if (q->asked[i] == q->put[i] || user_u32(&now, item_at(call, i)))
			continue;
		if (now == q->put[i])
			write_u32(item_at(call, i), q->asked[i]);
		else
			note(FS_VIEW_COUNT_CHANGED, 1);
	}
}

/* Everything is read before anything is written. 0: the driver may look at it now. */
static __always_inline int ask(struct view_call *call, struct view_question *q)
{
	struct fs_pid_key key = {.ns = call->ns};
	u32 *tgid;

	FS_LOOP
	for (u32 i = 0; i < FS_VIEW_INFO_MAX; i++) {
		if (i >= q->count)
			break;
		if (user_u32(&key.pid, item_at(call, i)))
			return -1;
		tgid = tgid_by_nr.lookup(&key);
		q->asked[i] = key.pid;
		q->put[i] = tgid ? *tgid : key.pid ? FS_VIEW_NOBODY : 0; /* 0: an error, as it would be */
	}
	FS_LOOP
	for (u32 i = 0; i < FS_VIEW_INFO_MAX; i++) {
		if (i >= q->count)
			break;
		if (q->asked[i] != q->put[i] && write_u32(item_at(call, i), q->put[i])) {
			take_back(call, q);
			return -1;
		}
		q->written = i + 1;
	}
	note(FS_VIEW_COUNT_INFOS, 1);
	return 0;
}

static __always_inline void enter_info(fs_u64 thread, struct view_call *call)
{
	int zero = 0;
	struct view_question *q = zero_question.lookup(&zero);
	u32 count;

	if (!q || user_u32(&count, call->params))
		return;
	if (count > FS_VIEW_INFO_MAX) {
		note(FS_VIEW_COUNT_BAD_NUMBER, 1);
		return;
	}
	if (asked_by_thread.update(&thread, q)) {
		note(FS_VIEW_COUNT_CALL_FULL, 1);
		return;
	}
	q = asked_by_thread.lookup(&thread);
	if (!q)
		return;
	q->count = count;
	if (ask(call, q))
		asked_by_thread.delete(&thread);
}

/*
 * A driver that translates asks for the number of each of its clients, and the caller is one. That it did not, in
 * answer to a question about a process of the caller's, is the sign that it will not.
 */
static __always_inline void watch_info(struct view_call *call)
{
	u32 count, pid;

	if (translator(FS_VIEW_KIND_INFO) != FS_VIEW_BY_UNDECIDED)
		return;
	if (user_u32(&count, call->params) || !count || count > FS_VIEW_INFO_MAX)
		return;
	if (!user_u32(&pid, item_at(call, 0)) && pid && !is_foreign(call->ns, pid))
		decide(FS_VIEW_KIND_INFO, FS_VIEW_BY_US);
}

/* ---- utilisation samples ---- */

static __always_inline int find_samples(struct view_call *call, struct view_samples *s)
{
	u32 bytes;

	s->engines = call->size == 34000 ? 4 : 6;
	s->record = call->size == 55888 ? 128 : 116;
	s->stride = SAMPLES_ENGINES + s->engines * s->record;
	if (user_u32(&bytes, call->params + 4))
		return -1;
	s->records = bytes / s->stride * s->engines;
	if (bytes <= FS_VIEW_SAMPLES_MAX * s->stride)
		return 0;
	note(FS_VIEW_COUNT_BAD_NUMBER, 1);
	return -1;
}

/* Where the pid of a record is. By arithmetic: a branch would double the paths the verifier follows. */
static __always_inline fs_u64 pid_at(struct view_call *call, struct view_samples *s, u32 i)
{
	return call->params + SAMPLES_ITEMS + i / s->engines * s->stride + SAMPLES_ENGINES +
	       i % s->engines * s->record + SAMPLES_PROC_ID;
}

static __always_inline int are_samples_ours(struct view_call *call, struct view_samples *s)
{
	u32 pid, by = translator(FS_VIEW_KIND_SAMPLES);

	if (by != FS_VIEW_BY_UNDECIDED)
		return by == FS_VIEW_BY_US;
	FS_LOOP
	for (u32 i = 0; i < MAX_RECORDS; i++) {
		if (i >= s->records || bpf_probe_read_user(&pid, sizeof(pid), (void *)pid_at(call, s, i)))
			return 0;
		if (is_foreign(call->ns, pid)) {
			decide(FS_VIEW_KIND_SAMPLES, FS_VIEW_BY_US);
			return 1;
		}
	}
	return 0;
}

/* A process the caller cannot see becomes no process, as the driver marks an idle engine. */
static __always_inline void answer_samples(struct view_call *call)
{
	struct fs_pid_key key = {.ns = call->ns};
	int zero = 0, err = 0;
	struct view_scratch *v = view_scratch.lookup(&zero);
	struct view_samples *s;
	struct fs_pid_nr *nr;
	u32 pid;

	if (!v)
		return;
	s = &v->samples;
	if (find_samples(call, s) || !are_samples_ours(call, s))
		return;
	v->count = v->kept = 0;
	FS_LOOP
	for (u32 i = 0; i < MAX_RECORDS; i++) {
		fs_u64 where = pid_at(call, s, i);

		if (i >= s->records)
			break;
		err = bpf_probe_read_user(&key.pid, sizeof(key.pid), (void *)where);
		if (err)
			break;
		if (key.pid + 1 <= 1) /* none, or an empty sample */
			continue;
		pid = FS_VIEW_NO_PID;
		nr = nr_by_tgid.lookup(&key);
		if (nr) {
			pid = nr->nr;
			v->kept++;
		}
		v->count++;
		err = bpf_probe_write_user((void *)where, &pid, sizeof(pid));
		if (err)
			break;
	}
	note(FS_VIEW_COUNT_SAMPLES, 1);
	note(FS_VIEW_COUNT_HIDDEN, v->count - v->kept);
	if (err)
		note(FS_VIEW_COUNT_BAD_WRITE, 1);
}

#endif
