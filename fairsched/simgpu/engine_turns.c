// SPDX-License-Identifier: Apache-2.0
/*
 * The log of context switches, as the firmware of a GPU's compute engine keeps it (hardware: FECS).
 *
 * It tells whose state the engine holds. So who runs dry while nobody waits is still there, and leaves when another
 * comes. A switch is cut as one of 155 us was found to be on an H100: who leaves does so 30 us after its last kernel,
 * who comes is there 60 us before its first. MPS clients are one for it: the trace names their server, and where
 * several contexts run at once without a server, this engine in its place.
 */
#include <string.h>

#include "engine.h"

#define SWITCH_US 155
#define LEAVES_AFTER_US 30
#define COMES_BEFORE_US 60
#define CHANNELS 3 /* of a context: one for kernels, two for copies */
#define FIRST_CHANNEL 7

static const char server_name[] = "nvidia-cuda-mps"; /* the kernel keeps 15 characters */

static uint64_t max_ns(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* A new context gets its channels. */
void turns_name(struct ectx *c, uint32_t pid)
{
	static _Atomic uint32_t last = FIRST_CHANNEL;
	char path[64], name[16] = "";
	FILE *file;

	c->channel = atomic_fetch_add(&last, CHANNELS);
	snprintf(path, sizeof(path), "/proc/%u/comm", pid);
	file = fopen(path, "re");
	if (!file)
		return;
	c->is_mps_server =
		fgets(name, sizeof(name), file) && !strncmp(name, server_name, strlen(server_name));
	fclose(file);
}

static uint32_t server_pid(const struct egpu *g)
{
	for (const struct ectx *c = g->contexts; c; c = c->next)
		if (c->is_mps_server)
			return c->truth->pid;
	return (uint32_t)getpid();
}

static uint64_t stamp(struct egpu *g, uint64_t at_ns)
{
	g->turn_ns = max_ns(g->turn_ns, at_ns);
	return g->turn_ns;
}

static void append(struct egpu *g, const struct sim_turn *turn)
{
	uint64_t count = atomic_load_explicit(&g->turns->count, memory_order_relaxed);

	g->turns->ring[count % SIM_MAX_TURNS] = *turn;
	atomic_store_explicit(&g->turns->count, count + 1, memory_order_release);
}

/* When who leaves has gone, if the switch ends at `end_ns`. */
static uint64_t leaving_ns(const struct egpu *g, uint64_t end_ns)
{
	uint64_t cost = g->shm->spec.switch_ns;

	return end_ns - cost + cost * LEAVES_AFTER_US / SWITCH_US;
}

/* The switch to the current context is over. */
void turns_switched(struct egpu *g, uint64_t at_ns)
{
	struct ectx *c = g->current;
	bool is_shared = g->shm->spec.overlap > 1 || c->truth->is_mps_client;
	struct sim_turn turn = {
		.left_pid = g->loaded_pid,
		.left_channel = g->loaded_channel,
		.came_pid = is_shared ? server_pid(g) : c->truth->pid,
		.came_channel = c->channel,
	};

	if (!g->turns)
		return;
	turn.left_ns = g->loaded_channel ? stamp(g, leaving_ns(g, at_ns)) : 0;
	turn.came_ns = stamp(g, at_ns - g->shm->spec.switch_ns * COMES_BEFORE_US / SWITCH_US);
	g->loaded_pid = turn.came_pid;
	g->loaded_channel = turn.came_channel;
	append(g, &turn);
}

/* A context ends: if the engine holds its state, that leaves for nobody's. */
void turns_drop(struct egpu *g, const struct ectx *c, uint64_t now_ns)
{
	struct sim_turn turn = {.left_pid = g->loaded_pid, .left_channel = g->loaded_channel};
	uint64_t left_ns = now_ns;

	if (!g->turns || g->loaded_channel != c->channel)
		return;
	if (g->phase == SIM_SWITCH && leaving_ns(g, g->phase_end_ns) < left_ns)
		left_ns = leaving_ns(g, g->phase_end_ns);
	turn.left_ns = stamp(g, left_ns);
	g->loaded_pid = g->loaded_channel = 0;
	append(g, &turn);
}
