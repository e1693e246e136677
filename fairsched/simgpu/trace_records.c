// SPDX-License-Identifier: Apache-2.0
/*
 * The engine's turns as records of the driver.
 *
 * Now and then the driver itself has a short turn between two others; its records name no process, and their times
 * mean nothing. FAIRSCHED_SIM_TRACE_LOSE=N: of every N turns the hardware's log loses one, which only a number tells.
 */
#include <stdlib.h>

#include "trace_int.h"

#define TYPE_V2 2
#define TAG_START 6
#define TAG_END 7
#define NOBODY UINT32_MAX
#define NO_MIG 0xff
#define DRIVER_EVERY 64   /* turns */
#define FIRST_SEQNO 65000 /* it will soon begin anew */

static uint64_t mixed(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	return z ^ (z >> 31);
}

static uint64_t lost_every(void)
{
	const char *text = getenv("FAIRSCHED_SIM_TRACE_LOSE");

	return text ? strtoull(text, NULL, 10) : 0;
}

void records_begin(struct object *buffer)
{
	buffer->turns = atomic_load(&turns_of(buffer->gpu)->count);
	buffer->seqno = FIRST_SEQNO;
}

static void put(struct object *b, uint8_t tag, uint32_t pid, uint32_t channel, uint64_t time)
{
	uint32_t at = atomic_load(&b->header->put);
	uint32_t next = (at + 1) % b->size;
	uint16_t seqno = b->seqno++;

	if (next == atomic_load(&b->header->get) && !b->keeps_newest) {
		b->header->dropped++;
		return;
	}
	b->records[at] = (struct ring_record){
		.type = TYPE_V2,
		.tag = tag,
		.seqno = seqno,
		.channel = channel,
		.pid = pid,
		.mig_gpu = NO_MIG,
		.mig_compute = NO_MIG,
		.time = time,
	};
	atomic_store_explicit(&b->header->put, next, memory_order_release);
}

/* Within the turn, or any small number. */
static uint64_t noise(const struct sim_turn *turn, uint32_t gpu, uint64_t number)
{
	uint64_t some = mixed(number), span = turn->came_ns - turn->left_ns;

	if (some % 3 == 0)
		return 0;
	if (some % 3 == 1 || !turn->left_ns || !turn->came_ns)
		return some % 4096 * 32;
	return gpu_time_ns(gpu, turn->left_ns + some % (span + 1));
}

static void put_of(struct object *b, uint8_t tag, uint32_t pid, uint32_t channel, uint64_t at_ns,
		   uint64_t noisy)
{
	if (b->is_of_all)
		put(b, tag, pid, channel, gpu_time_ns(b->gpu, at_ns));
	else
		put(b, tag, 0, 0, noisy);
}

static void put_turn(struct object *b, const struct sim_turn *turn, uint64_t number)
{
	uint64_t noisy = noise(turn, b->gpu, number);

	if (turn->left_channel)
		put_of(b, TAG_END, turn->left_pid, turn->left_channel, turn->left_ns, noisy);
	if (number % DRIVER_EVERY == DRIVER_EVERY - 1) {
		put(b, TAG_START, NOBODY, NOBODY, noisy);
		put(b, TAG_END, NOBODY, NOBODY, noise(turn, b->gpu, ~number));
	}
	if (turn->came_channel)
		put_of(b, TAG_START, turn->came_pid, turn->came_channel, turn->came_ns, noisy);
}

/* What the hardware's log holds goes to the ring. */
void records_fill(struct object *b)
{
	struct sim_turns *log = turns_of(b->gpu);
	uint64_t count = atomic_load_explicit(&log->count, memory_order_acquire), every = lost_every();

	while (b->turns < count) {
		struct sim_turn turn = log->ring[b->turns % SIM_MAX_TURNS];
		uint64_t newest = atomic_load_explicit(&log->count, memory_order_acquire);
		bool is_lost = newest - b->turns >= SIM_MAX_TURNS; /* or may be half of another */

		b->turns++;
		if (is_lost || (every && b->turns % every == 0))
			b->seqno += 2;
		else if (b->is_enabled)
			put_turn(b, &turn, b->turns);
		else
			b->seqno += 2;
	}
}
