/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a call proves that has returned: of which streams, up to where, and what is told of it. complete.h has what leads to
 * it; a submit notes the first work of a stream that is not proven (submit.h).
 */
#ifndef FAIRSCHED_PROOFS_H
#define FAIRSCHED_PROOFS_H

#include "submit.h"

#define FS_NO_SEQ (~0ULL >> 1)

/* All bits where a is below b, else none; both are below 2^63. Without a branch: in a loop the verifier walks each. */
static __always_inline fs_u64 is_below(fs_u64 a, fs_u64 b)
{
	return -((a - b) >> 63);
}

/* Which of the streams `candidates` have nothing beyond `seq`. */
static __always_inline fs_u64 finished(struct seqs *seqs, fs_u64 candidates, fs_u64 seq)
{
	fs_u64 done = 0;

	FS_LOOP
	for (int i = 0; i < FS_MAX_STREAMS; i++)
		done |= (~is_below(seq, seqs->last[i]) & 1) << i;
	return done & candidates;
}

/*
 * What a call proves is noted first, of all streams that it covers, and told in the end, once: a step of several streams
 * that are joined is one step. Two threads may write one word; what is lost is found at the next proof.
 */

/* `seq` is proven complete for one stream: the first of its compute beyond that, 0 where there is none. */
static __always_inline fs_u64 first_beyond(struct seqs *seqs, u32 i, fs_u64 seq)
{
	fs_u64 first = seqs->first[i];
	fs_u64 is_proven = is_below(first - 1 & FS_NO_SEQ, seq);

	return (seq + 1 & is_below(seq, seqs->compute[i]) & is_proven) | (first & ~is_proven);
}

/* Notes it; returns whether that was news, 0: it was not. */
static __always_inline fs_u64 prove_stream(struct seqs *seqs, u32 index, fs_u64 seq)
{
	u32 i = index & (FS_MAX_STREAMS - 1);
	fs_u64 change = seqs->first[i] ^ first_beyond(seqs, i, seq);

	seqs->first[i] ^= change;
	return change;
}

/* The same of all that a call covers. */
static __always_inline fs_u64 prove_streams(struct seqs *seqs, fs_u64 covered, fs_u64 seq)
{
	fs_u64 news = 0;

	FS_LOOP
	for (int i = 0; i < FS_MAX_STREAMS; i++) {
		fs_u64 change = (seqs->first[i] ^ first_beyond(seqs, i, seq)) & -(covered >> i & 1);

		seqs->first[i] ^= change;
		news |= change;
	}
	return news;
}

/*
 * A stream is proven up to `seq`, and the context up to where each of its streams is that somebody asks about: whoever waits
 * for a little one says nothing of a deep one that is asked about late. One that nobody ever asked about holds nothing back,
 * for programs warm up in such streams, and join others in more steps than are kept (synced_deps). So it may fall, when one
 * is asked about for the first time.
 */
static __always_inline void set_proven(struct fs_ctx *c, struct seqs *seqs, fs_u64 seq)
{
	fs_u64 least = c->completed;

	least += (seq - least) & is_below(least, seq);
	c->completed = least;
	FS_LOOP
	for (int i = 0; i < FS_MAX_STREAMS; i++) {
		fs_u64 before = (seqs->first[i] - 1 & FS_NO_SEQ) | (~-(c->asked >> i & 1) & FS_NO_SEQ);

		least += (before - least) & is_below(before, least);
	}
	c->proven = least;
}

/*
 * Ends what is busy of the streams in `covered`, complete up to `seq`; returns which of them were. A submit that raced with
 * the clearing is put back: its bit may have been cleared between its sequence number and its own set_stream.
 */
static __always_inline fs_u64 complete(u32 slot, struct fs_ctx *c, struct seqs *seqs, fs_u64 covered,
				       fs_u64 seq, fs_u64 now, fs_u64 entered)
{
	fs_u64 busy, gone, late;

	c->synced++;
	c->last_call_ns = now;
	c->waited_ns = now - entered;
	busy = c->busy[FS_COMPUTE].streams | c->busy[FS_COPY].streams;
	gone = finished(seqs, busy & covered, seq);
	if (!gone)
		return 0;
	clear_streams(slot, c, FS_COMPUTE, gone, now, 0);
	clear_streams(slot, c, FS_COPY, gone, now, 0);
	if (c->submitted > seq) {
		late = gone & ~finished(seqs, gone, seq);
		if (late)
			set_stream(slot, c, FS_COMPUTE, late, now);
	}
	return gone;
}

/* What a context had said before a call; `news`: of its compute, which the call proved. */
struct told {
	fs_u64 proven;
	fs_u64 bursts;
	fs_u64 news;
	fs_u64 gone;
};

static __always_inline struct told told_by(struct fs_ctx *c)
{
	struct told told = {.proven = c->proven, .bursts = c->busy[FS_COMPUTE].bursts};

	return told;
}

/*
 * Says how far it is, unless the end of an interval has said so. Where one stream fell idle and others go on of which nobody
 * ever asked, how far those are nobody knows.
 */
static __always_inline void tell(u32 slot, struct fs_ctx *c, struct told *told, fs_u64 now)
{
	if (!told->news || c->proven == told->proven || c->busy[FS_COMPUTE].bursts != told->bursts)
		return;
	if (told->gone && c->busy[FS_COMPUTE].streams & ~c->asked)
		return;
	if (!(c->muted & 1) && admit_edges(c->owner, 1, now))
		emit(FS_EDGE_PROGRESS, slot, c, FS_COMPUTE, now, c->proven, BPF_RB_NO_WAKEUP);
}

/*
 * Which streams a call covers that has returned; returns whether it proves anything: a stream with nothing to do proves
 * nothing of what others do. One may be idle for us alone, who took a drain to be over.
 */
static __always_inline int covered_by(struct call *call, struct fs_ctx *c, struct seqs *seqs, fs_u64 *covered)
{
	u32 index = call->mark.index;
	fs_u64 asked, busy = c->busy[FS_COMPUTE].streams | c->busy[FS_COPY].streams;

	if (call->kind == CALL_CTX_SYNC)
		*covered = ~0ULL;
	else if (index >= FS_MAX_STREAMS - 1)
		*covered = 0; /* never used, or shared by several streams: no single one proves the others */
	else
		*covered = 1ULL << (index & (FS_MAX_STREAMS - 1));
	if (call->kind == CALL_STREAM_SYNC && call->arg == FS_STREAM_LEGACY)
		*covered |= c->blocking;
	asked = *covered;
	if (index == FS_MAX_STREAMS - 1)
		asked |= 1ULL << (FS_MAX_STREAMS - 1);
	return !busy || busy & asked || (index < FS_MAX_STREAMS && seqs->first[index & (FS_MAX_STREAMS - 1)]);
}

/* Whether what a completed stream had waited for at place `i` was before `call`: so it is complete, too. */
static __always_inline fs_u64 is_implied(struct deps *deps, int i, struct call *call)
{
	struct dep *dep = &deps->dep[i & (FS_MAX_DEPS - 1)];
	/* The number of the wait that is kept here: it may have come later, with nothing submitted in between. */
	u32 number = deps->next - 1 - ((deps->next - 1 - i) & (FS_MAX_DEPS - 1));

	return dep->on.seq && dep->at <= call->mark.seq && number < call->mark.waits &&
	       dep->on.index < FS_MAX_STREAMS - 1;
}

/* Notes what a call proved of the streams that it asked for, before any of it is told. */
static __always_inline fs_u64 prove(struct call *call, struct fs_ctx *c, struct seqs *seqs, fs_u64 covered)
{
	u32 index = call->mark.index;
	fs_u64 news = prove_streams(seqs, covered, call->mark.seq);

	if (call->kind != CALL_CTX_SYNC && index < FS_MAX_STREAMS - 1)
		__sync_fetch_and_or(&c->asked, 1ULL << (index & (FS_MAX_STREAMS - 1)));
	/* What several streams share is proven of one of them, nobody knows which. */
	if (index == FS_MAX_STREAMS - 1)
		news |= seqs->first[FS_MAX_STREAMS - 1];
	set_proven(c, seqs, call->mark.seq);
	return news;
}

/*
 * What a completed stream had waited for is complete too (one step: a fork and join of streams). Of another context that is
 * told where it was the last of it: its other streams have their own say.
 */
static __always_inline void synced_deps(struct call *call, struct deps *deps, struct told *told, fs_u64 now)
{
	FS_LOOP
	for (int i = 0; i < FS_MAX_DEPS; i++) {
		struct dep *dep = &deps->dep[i];
		u32 slot = dep->on.slot;
		struct fs_ctx *c = ctx_at(slot);
		struct seqs *seqs = seqs_by_slot.lookup((int *)&slot);
		fs_u64 entered;

		if (!is_implied(deps, i, call) || !c || !seqs || c->generation != dep->on.generation)
			continue;
		/* Within a context the call waited for all that has ended. Elsewhere not, but 0 would say there was no call. */
		entered = slot == call->mark.slot ? call->arg2 : now - 1;
		told->news |= prove_stream(seqs, dep->on.index, dep->on.seq);
		set_proven(c, seqs, dep->on.seq);
		told->gone |= complete(slot, c, seqs, 1ULL << (dep->on.index & (FS_MAX_STREAMS - 1)),
				       dep->on.seq, now, entered);
		dep->on.seq = 0;
	}
}

#endif
