// SPDX-License-Identifier: Apache-2.0
/* The engine's files and its socket, for the trace; and the clocks of the GPUs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "sim_mig.h"
#include "trace_int.h"

#define DRIFT_PPM 28 /* against CLOCK_MONOTONIC: an H100's */
#define STEP_NS 32

static struct {
	char dir[256];
	const struct sim_gpu *gpus[SIM_MAX_GPUS];
	struct sim_turns *turns[SIM_MAX_GPUS];
	uint32_t count;
	int socket;
} host;

static void *map(const char *name, size_t bytes)
{
	char path[512];
	void *found;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", host.dir, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	found = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	return found == MAP_FAILED ? NULL : found;
}

static bool call_engine(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 5};

	if (snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/control", host.dir) >=
	    (int)sizeof(addr.sun_path))
		return false;
	host.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (host.socket < 0)
		return false;
	setsockopt(host.socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (!connect(host.socket, (struct sockaddr *)&addr, sizeof(addr)))
		return true;
	close(host.socket);
	return false;
}

/* Once per process; false: there is no engine. */
bool gpus_open(const char *dir)
{
	char name[SIM_NAME_BYTES + 8];
	uint32_t count = 1;

	if (host.count)
		return true;
	snprintf(host.dir, sizeof(host.dir), "%s", dir);
	for (uint32_t i = 0; i < count && i < SIM_MAX_GPUS; i++) {
		snprintf(name, sizeof(name), "gpu%u", i);
		host.gpus[i] = map(name, sizeof(struct sim_gpu));
		snprintf(name, sizeof(name), "gpu%u.turns", i);
		host.turns[i] = map(name, sizeof(struct sim_turns));
		if (!host.gpus[i] || !host.turns[i] || host.gpus[i]->magic != SIM_MAGIC)
			return false;
		count = host.gpus[i]->gpu_count;
	}
	host.count = call_engine() ? count : 0;
	return host.count;
}

uint32_t gpus_count(void)
{
	return host.count;
}

const struct sim_gpu *gpu_of(uint32_t gpu)
{
	return host.gpus[gpu];
}

struct sim_turns *turns_of(uint32_t gpu)
{
	return host.turns[gpu];
}

/* Have the engine write down all turns up to now. */
bool gpus_catch_up(void)
{
	struct sim_request rq = {.op = SIM_RPC_SYNC};
	struct sim_reply rp;

	return !atomic_load(&((struct sim_gpu *)host.gpus[0])->dead) &&
	       send(host.socket, &rq, sizeof(rq), MSG_NOSIGNAL) == (ssize_t)sizeof(rq) &&
	       recv(host.socket, &rp, sizeof(rp), 0) == (ssize_t)sizeof(rp) && rp.status == SIM_OK;
}

bool gpu_is_split(uint32_t gpu)
{
	struct mig_file f;

	mig_load(host.dir, gpu, &f);
	return f.is_enabled;
}

uint64_t gpu_time_ns(uint32_t gpu, uint64_t monotonic_ns)
{
	const struct sim_gpu *g = host.gpus[gpu];
	uint64_t since = monotonic_ns - g->start_ns;
	uint64_t base = g->start_ns + g->boot_realtime_offset_ns + (gpu + 1) * 7654321987ull;

	return (base + since + since / 1000 * DRIFT_PPM / 1000) / STEP_NS * STEP_NS;
}
