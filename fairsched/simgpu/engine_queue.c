// SPDX-License-Identifier: Apache-2.0
/* Queues: the head of each stream, what it waits for, and the commands that cost no GPU time. */
#include "engine.h"

static uint64_t max_ns(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* The client writes used_streams: never trust it as a bound. */
uint32_t streams_used(const struct ectx *c)
{
	uint32_t used = atomic_load(&c->region->used_streams);

	return used < SIM_MAX_STREAMS ? used : SIM_MAX_STREAMS;
}

struct sim_cmd *queue_head(struct sim_stream *s)
{
	uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed);

	if (atomic_load(&s->tail) == done)
		return NULL;
	return &s->ring[done % SIM_RING];
}

/*
 * GPU time of a kernel; it is longer on a part of a GPU. Bounded, so that no sum of times overflows: this is thirteen
 * days.
 */
uint64_t kernel_ns(const struct ectx *c, const struct sim_cmd *cmd)
{
	uint64_t ns = cmd->amount < SIM_MAX_KERNEL_NS ? cmd->amount : SIM_MAX_KERNEL_NS;

	return c->slices ? ns * SIM_MAX_INSTANCES / c->slices : ns;
}

/*
 * The legacy default stream waits for everything submitted earlier to the blocking streams, and they
 * for everything submitted earlier to it. Heads are in submission order within a stream, so looking
 * at heads is enough. Returns when the barrier opened, SIM_NEVER while it is shut.
 */
static uint64_t barrier_ns(struct ectx *c, uint32_t stream, const struct sim_cmd *cmd)
{
	struct sim_region *r = c->region;
	struct sim_stream *self = &r->streams[stream];
	uint32_t flags = atomic_load_explicit(&self->flags, memory_order_relaxed);
	uint32_t used = streams_used(c);
	uint64_t at = 0;

	if (flags & SIM_STREAM_NONBLOCKING)
		return 0;
	for (uint32_t i = 0; i < used; i++) {
		struct sim_stream *s = &r->streams[i];
		uint32_t theirs = atomic_load_explicit(&s->flags, memory_order_relaxed);
		const struct sim_cmd *head;

		if (i == stream || (theirs & SIM_STREAM_NONBLOCKING))
			continue;
		if (!((flags | theirs) & SIM_STREAM_LEGACY))
			continue;
		head = queue_head(s);
		if (head && head->order < cmd->order)
			return SIM_NEVER;
		at = max_ns(at, atomic_load_explicit(&s->done_ns, memory_order_relaxed));
	}
	return at;
}

static uint64_t head_ready_ns(struct ectx *c, uint32_t stream, const struct sim_cmd *cmd)
{
	struct sim_stream *s = &c->region->streams[stream];
	uint64_t barrier = barrier_ns(c, stream, cmd);

	if (barrier == SIM_NEVER)
		return SIM_NEVER;
	barrier = max_ns(barrier, atomic_load_explicit(&s->done_ns, memory_order_relaxed));
	return max_ns(barrier, cmd->stamp_ns);
}

/* Since when the head of the stream, if it is an `op`, could run; SIM_NEVER if it cannot. */
uint64_t stream_ready_ns(struct ectx *c, uint32_t stream, uint32_t op)
{
	const struct sim_cmd *cmd = queue_head(&c->region->streams[stream]);

	if (!cmd || cmd->op != op)
		return SIM_NEVER;
	return head_ready_ns(c, stream, cmd);
}

/* Since when the context has something to execute; SIM_NEVER if it has nothing. */
uint64_t context_ready_ns(struct ectx *c)
{
	uint32_t used = streams_used(c);
	uint64_t best = SIM_NEVER;

	for (uint32_t i = 0; i < used; i++) {
		uint64_t at = stream_ready_ns(c, i, SIM_KERNEL);

		if (at < best)
			best = at;
	}
	return best;
}

void queue_complete(struct ectx *c, uint32_t stream, uint64_t at_ns)
{
	struct sim_stream *s = &c->region->streams[stream];
	uint64_t done = atomic_load_explicit(&s->done, memory_order_relaxed) + 1;
	uint64_t target;

	atomic_store_explicit(&s->done_ns, at_ns, memory_order_relaxed);
	atomic_store(&s->done, done);
	target = atomic_load(&s->wait_target);
	if (target && target <= done) {
		atomic_store(&s->wait_target, 0);
		atomic_fetch_add(&s->wake_word, 1);
		sim_futex_wake(&s->wake_word);
	}
}

/* The event of another context or GPU: when it fired, SIM_NEVER if it has not. */
static uint64_t foreign_event_ns(const struct sim_cmd *cmd)
{
	uint32_t gpu = (uint32_t)(cmd->target >> 48);
	uint32_t region = (uint32_t)(cmd->target >> 32) & 0xffff;
	uint32_t slot = (uint32_t)cmd->target;
	struct sim_event *event;

	if (gpu >= SIM_MAX_DEVICES || !engine.gpus[gpu].shm || region >= SIM_MAX_REGIONS ||
	    slot >= SIM_MAX_EVENTS)
		return 0;
	event = &engine.gpus[gpu].regions[region].events[slot];
	if (atomic_load(&event->done_gen) < cmd->seq)
		return SIM_NEVER;
	return atomic_load(&event->time_ns);
}

static bool memory_matches(struct sim_region *r, const struct sim_cmd *cmd)
{
	uint32_t value = (uint32_t)cmd->amount;
	uint32_t seen;

	if (cmd->target + sizeof(seen) > SIM_PIN_BYTES)
		return true;
	seen = atomic_load((_Atomic uint32_t *)(void *)&r->pin[cmd->target]);
	switch (cmd->seq) {
	case 0:
		return (int32_t)(seen - value) >= 0;
	case 1:
		return seen == value;
	case 2:
		return (seen & value) != 0;
	default:
		return ~(seen | value) != 0;
	}
}

static uint64_t host_func_ns(struct ectx *c, struct sim_stream *s, uint64_t ready_ns)
{
	uint64_t seq = atomic_load_explicit(&s->done, memory_order_relaxed) + 1;

	if (atomic_load(&s->host_done) >= seq)
		return max_ns(ready_ns, sim_now_ns());
	if (atomic_load_explicit(&s->host_ready, memory_order_relaxed) < seq) {
		atomic_store(&s->host_ready, seq);
		atomic_fetch_add(&c->region->host_word, 1);
		sim_futex_wake(&c->region->host_word);
	}
	return SIM_NEVER;
}

/* When a command that needs no GPU time completes; SIM_NEVER if it still waits. */
static uint64_t instant_ns(struct egpu *g, struct ectx *c, struct sim_stream *s, const struct sim_cmd *cmd,
			   uint64_t ready_ns)
{
	struct sim_region *r = c->region;
	uint64_t at;

	switch (cmd->op) {
	case SIM_EVENT:
		atomic_store(&r->events[cmd->target % SIM_MAX_EVENTS].time_ns, ready_ns);
		atomic_store(&r->events[cmd->target % SIM_MAX_EVENTS].done_gen, cmd->seq);
		return ready_ns;
	case SIM_WAIT_EVENT:
		at = foreign_event_ns(cmd);
		if (at == SIM_NEVER && cmd->target >> 48 != g->index)
			g->needs_poll = true;
		return at == SIM_NEVER ? at : max_ns(at, ready_ns);
	case SIM_HOST_FUNC:
		return host_func_ns(c, s, ready_ns);
	case SIM_WRITE32:
		if (cmd->target + sizeof(uint32_t) <= SIM_PIN_BYTES)
			atomic_store((_Atomic uint32_t *)(void *)&r->pin[cmd->target], (uint32_t)cmd->amount);
		return ready_ns;
	case SIM_WAIT32:
		if (memory_matches(r, cmd))
			return max_ns(ready_ns, sim_now_ns());
		g->needs_poll = true;
		return SIM_NEVER;
	default:
		return ready_ns;
	}
}

static bool settle_stream(struct egpu *g, struct ectx *c, uint32_t stream)
{
	struct sim_stream *s = &c->region->streams[stream];
	struct sim_cmd *cmd;
	bool moved = false;

	while ((cmd = queue_head(s)) && cmd->op != SIM_KERNEL && cmd->op != SIM_COPY) {
		uint64_t at = head_ready_ns(c, stream, cmd);

		if (at != SIM_NEVER)
			at = instant_ns(g, c, s, cmd, at);
		if (at == SIM_NEVER)
			break;
		queue_complete(c, stream, at);
		moved = true;
	}
	return moved;
}

/*
 * Complete every instant command that can. Each carries its own exact time (the latest of its stamp
 * and what it waited for), so it does not matter that this runs a little after it. Such commands do
 * not need their context to be resident: a simplification, the hardware's host engine would wait.
 */
void settle(struct egpu *g)
{
	bool moved = true;

	g->needs_poll = false;
	while (moved) {
		moved = false;
		for (struct ectx *c = g->contexts; c; c = c->next) {
			uint32_t used = streams_used(c);

			for (uint32_t i = 0; i < used; i++)
				moved |= settle_stream(g, c, i);
		}
	}
}

/* Changes whenever somebody has submitted something. */
uint64_t tail_sum(const struct egpu *g)
{
	uint64_t sum = 0;

	for (const struct ectx *c = g->contexts; c; c = c->next) {
		uint32_t used = streams_used(c);

		for (uint32_t i = 0; i < used; i++) {
			sum += atomic_load(&c->region->streams[i].tail);
			sum += atomic_load(&c->region->streams[i].host_done);
		}
	}
	return sum;
}
