// SPDX-License-Identifier: Apache-2.0
/* Contexts and memory on behalf of clients. The driver's part of the work, not the GPU's. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine_nature.h"

/* Ids are dense, so the slot is id % SIM_MAX_TRUTHS unless a context that old is still alive. */
static struct sim_truth *new_truth(struct egpu *g)
{
	struct sim_gpu *shm = g->shm;

	for (int i = 0; i < SIM_MAX_TRUTHS; i++) {
		struct sim_truth *t = &shm->truths[shm->truth_count % SIM_MAX_TRUTHS];
		uint64_t id = ++shm->truth_count;

		if (t->id && !t->ended_ns)
			continue;
		memset(t, 0, sizeof(*t));
		t->id = id;
		return t;
	}
	return NULL;
}

static int new_region(struct egpu *g)
{
	for (int i = 0; i < SIM_MAX_REGIONS; i++) {
		if (g->region_in_use[i])
			continue;
		g->region_in_use[i] = 1;
		return i;
	}
	return -1;
}

static struct ectx *find_context(struct egpu *g, uint32_t region, int fd)
{
	for (struct ectx *c = g->contexts; c; c = c->next)
		if (c->index == region && c->client == fd)
			return c;
	return NULL;
}

static void append_context(struct egpu *g, struct ectx *c)
{
	struct ectx **link = &g->contexts;

	while (*link)
		link = &(*link)->next;
	*link = c;
}

static uint32_t create_context(struct egpu *g, int fd, uint32_t pid, const struct sim_request *rq,
			       struct sim_reply *rp)
{
	int region = new_region(g);
	struct ectx *c = region < 0 ? NULL : calloc(1, sizeof(*c));
	struct sim_truth *t;

	if (!c)
		return SIM_NO_MEMORY;
	turns_name(c, pid);
	accounts_open(g);
	t = new_truth(g);
	if (t) {
		t->pid = pid;
		t->region = (uint32_t)region;
		t->owner = rq->owner;
		t->is_mps_client = rq->region;
		t->handle = rq->a;
		t->created_ns = sim_now_ns();
		t->booked_from = g->shm->booked_samples;
		t->wall_start_us = sim_realtime_ns() / 1000;
		c->truth = t;
		c->region = &g->regions[region];
		c->index = (uint32_t)region;
		c->client = fd;
		c->number = ++g->contexts_made;
		c->place = nature_place(g, c->number);
		c->slices = g->shm->spec.slices;
		c->stream = NO_STREAM;
		append_context(g, c);
		rp->a = (uint64_t)region;
		rp->b = t->id;
	}
	accounts_close(g);
	if (t)
		return SIM_OK;
	g->region_in_use[region] = 0;
	free(c);
	return SIM_NO_MEMORY;
}

static void destroy_context(struct egpu *g, struct ectx *c)
{
	uint64_t now = sim_now_ns();

	gpu_step(g, now);
	gpu_drop_context(g, c, now);
	fallocate(g->regions_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		  (off_t)c->index * (off_t)sizeof(struct sim_region), (off_t)sizeof(struct sim_region));
	g->region_in_use[c->index] = 0;
	free(c);
}

static uint32_t change_memory(struct egpu *g, struct ectx *c, int64_t delta)
{
	struct sim_truth *t = c->truth;

	if (delta < 0 && (uint64_t)-delta > t->vram_bytes)
		return SIM_BAD_REQUEST;
	if (delta > 0 && (uint64_t)delta > g->shm->spec.vram_bytes - g->shm->vram_used_bytes)
		return SIM_NO_MEMORY;
	accounts_open(g);
	t->vram_bytes += (uint64_t)delta;
	g->shm->vram_used_bytes += (uint64_t)delta;
	if (t->vram_bytes > t->peak_vram_bytes)
		t->peak_vram_bytes = t->vram_bytes;
	accounts_close(g);
	return SIM_OK;
}

static uint32_t context_request(struct egpu *g, int fd, uint32_t pid, const struct sim_request *rq,
				struct sim_reply *rp)
{
	struct ectx *c;

	if (rq->op == SIM_RPC_CTX_CREATE)
		return create_context(g, fd, pid, rq, rp);
	c = find_context(g, rq->region, fd);
	if (!c || rq->a > INT64_MAX)
		return SIM_BAD_REQUEST;
	switch (rq->op) {
	case SIM_RPC_CTX_DESTROY:
		destroy_context(g, c);
		return SIM_OK;
	case SIM_RPC_ALLOC:
		return change_memory(g, c, (int64_t)rq->a);
	case SIM_RPC_FREE:
		return change_memory(g, c, -(int64_t)rq->a);
	default:
		return SIM_BAD_REQUEST;
	}
}

static void sync_accounts(void)
{
	for (uint32_t i = 0; i < SIM_MAX_DEVICES; i++) {
		struct egpu *g = &engine.gpus[i];
		uint64_t now;

		if (!g->is_started)
			continue;
		pthread_mutex_lock(&g->lock);
		now = sim_now_ns();
		gpu_step(g, now);
		gpu_charge_to(g, now);
		pthread_mutex_unlock(&g->lock);
		gpu_kick(g);
	}
}

void client_request(int fd, uint32_t pid, const struct sim_request *rq, struct sim_reply *rp)
{
	memset(rp, 0, sizeof(*rp));
	if (rq->op == SIM_RPC_HELLO) {
		rp->a = pid;
	} else if (rq->op == SIM_RPC_SYNC) {
		sync_accounts();
	} else if (rq->gpu < SIM_MAX_DEVICES && engine.gpus[rq->gpu].shm &&
		   gpu_start(&engine.gpus[rq->gpu])) {
		struct egpu *g = &engine.gpus[rq->gpu];

		pthread_mutex_lock(&g->lock);
		rp->status = context_request(g, fd, pid, rq, rp);
		pthread_mutex_unlock(&g->lock);
		gpu_kick(g);
	} else {
		rp->status = SIM_BAD_REQUEST;
	}
}

/* The client ended, by exit or by signal: its contexts go, whatever they had queued. */
void client_gone(int fd)
{
	for (uint32_t i = 0; i < SIM_MAX_DEVICES; i++) {
		struct egpu *g = &engine.gpus[i];
		struct ectx *c = NULL;

		if (!g->is_started)
			continue;
		pthread_mutex_lock(&g->lock);
		do {
			for (c = g->contexts; c && c->client != fd; c = c->next)
				;
			if (c)
				destroy_context(g, c);
		} while (c);
		pthread_mutex_unlock(&g->lock);
		gpu_kick(g);
	}
}
