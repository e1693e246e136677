// SPDX-License-Identifier: Apache-2.0
/* Finding the engine, mapping its memory, and asking it for the rare things. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cuda_int.h"

struct sim_client client = {.socket = -1, .mps_socket = -1, .lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t rpc_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t owner_tag;

/* Whose work it is, for who reads the truth: processes are short-lived and change their cgroups. */
static bool read_owner_tag(void)
{
	const char *text = getenv("FAIRSCHED_SIM_OWNER");
	unsigned long long tag;
	char *end;

	owner_tag = 0;
	if (!text)
		return true;
	tag = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || !tag || tag > UINT32_MAX) {
		fprintf(stderr, "libcuda stand-in: FAIRSCHED_SIM_OWNER=%s: set it to 1 ... 4294967295\n",
			text);
		return false;
	}
	owner_tag = (uint32_t)tag;
	return true;
}

static void *map_shared(const char *name, size_t bytes)
{
	char path[512];
	void *map;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", client.dir, name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	close(fd);
	return map == MAP_FAILED ? NULL : map;
}

static void *map_device(uint32_t device, const char *suffix, size_t bytes)
{
	char name[SIM_NAME_BYTES + 4];

	sim_file_name(name, device);
	strcat(name, suffix);
	return map_shared(name, bytes);
}

static bool open_gpus(void)
{
	client.device_count = visible_devices(client.dir, client.devices);
	for (int i = 0; i < client.device_count; i++) {
		struct sim_device *d = &client.devices[i];

		d->shm = map_device(d->gpu, "", sizeof(struct sim_gpu));
		d->regions = map_device(d->gpu, ".ctx", SIM_MAX_REGIONS * sizeof(struct sim_region));
		if (!d->shm || !d->regions || d->shm->magic != SIM_MAGIC || d->shm->abi != SIM_ABI)
			return false;
	}
	return true;
}

static bool connect_engine(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	struct sim_reply reply;

	if (snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/control", client.dir) >=
	    (int)sizeof(addr.sun_path))
		return false;
	client.socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (client.socket < 0)
		return false;
	if (connect(client.socket, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		return false;
	return client_rpc(SIM_RPC_HELLO, 0, 0, 0, &reply) == CUDA_SUCCESS;
}

/* As the real library: a process is a client of the MPS server that listens where the variable says, if one does. */
static void connect_mps(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");

	if (!dir ||
	    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/control", dir) >= (int)sizeof(addr.sun_path))
		return;
	client.mps_socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (client.mps_socket >= 0 &&
	    connect(client.mps_socket, (struct sockaddr *)&addr, sizeof(addr)) < 0) {
		close(client.mps_socket);
		client.mps_socket = -1;
	}
}

/* Only the parent owns the contexts; a forked child starts over with cuInit. */
static void after_fork_in_child(void)
{
	if (client.socket >= 0)
		close(client.socket);
	if (client.mps_socket >= 0)
		close(client.mps_socket);
	client.socket = client.mps_socket = -1;
	client.is_ready = false;
	client.live = NULL;
	pthread_mutex_init(&client.lock, NULL);
	pthread_mutex_init(&rpc_lock, NULL);
	forget_contexts();
	rm_forget();
}

CUresult client_init(void)
{
	static bool has_fork_handler;
	const char *dir = getenv("FAIRSCHED_SIM_DIR");
	CUresult rc = CUDA_SUCCESS;

	pthread_mutex_lock(&client.lock);
	if (!client.is_ready) {
		rc = CUDA_ERROR_NO_DEVICE;
		if (!read_owner_tag())
			rc = CUDA_ERROR_INVALID_VALUE;
		else if (dir &&
			 snprintf(client.dir, sizeof(client.dir), "%s", dir) < (int)sizeof(client.dir) &&
			 open_gpus() && client.device_count && connect_engine()) {
			connect_mps();
			client.is_ready = true;
			rc = CUDA_SUCCESS;
		}
		if (!has_fork_handler)
			pthread_atfork(NULL, NULL, after_fork_in_child);
		has_fork_handler = true;
	}
	pthread_mutex_unlock(&client.lock);
	return rc;
}

CUresult client_rpc(uint32_t op, uint32_t gpu, uint32_t region, uint64_t a, struct sim_reply *reply)
{
	struct sim_request rq = {.op = op, .gpu = gpu, .region = region, .owner = owner_tag, .a = a};
	ssize_t got = -1;

	pthread_mutex_lock(&rpc_lock);
	if (send(client.socket, &rq, sizeof(rq), MSG_NOSIGNAL) == (ssize_t)sizeof(rq)) {
		do /* a signal, or a thaw, may interrupt it */
			got = recv(client.socket, reply, sizeof(*reply), 0);
		while (got < 0 && errno == EINTR);
	}
	pthread_mutex_unlock(&rpc_lock);
	if (got != (ssize_t)sizeof(*reply))
		return CUDA_ERROR_DEINITIALIZED;
	if (reply->status == SIM_NO_MEMORY)
		return CUDA_ERROR_OUT_OF_MEMORY;
	return reply->status == SIM_OK ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* An engine that was killed could not say so in the shared memory; its socket does. */
bool client_engine_gone(const struct cu_ctx *c)
{
	char byte;

	if (atomic_load(&c->shm->dead))
		return true;
	return recv(client.socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}
