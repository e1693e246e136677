// SPDX-License-Identifier: Apache-2.0
/* Initialisation, connections to a host engine, and what they say of themselves. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "dcgm_int.h"

#define MAX_CONNECTIONS 16
#define DEFAULT_PORT "5555"
#define CONNECT_MS 5000
#define ANSWER_MS 60000

struct connect_params_v2 {
	unsigned int version, is_persistent, timeout_ms, is_unix;
};

struct connect_params_v3 {
	unsigned int version, is_persistent, timeout_ms;
};

struct embedded_params_v1 {
	unsigned int version;
	int mode;
	dcgmHandle handle;
	const char *log_file;
	int severity;
	unsigned int deny_count, deny[10];
};

struct version_info {
	unsigned int version;
	char text[2 * DCGM_MAX_STR_LENGTH];
};

struct health {
	unsigned int version, overall;
};

struct dcgm_library dcgm = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct connection connections[MAX_CONNECTIONS];

static struct sim_gpu *map_gpu(const char *dir, unsigned int index)
{
	char path[512], name[SIM_NAME_BYTES];
	struct sim_gpu *shm;
	int fd;

	sim_file_name(name, index);
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	shm = mmap(NULL, sizeof(*shm), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	return shm == MAP_FAILED || shm->magic != SIM_MAGIC || shm->abi != SIM_ABI ? NULL : shm;
}

DCGM_API dcgmReturn dcgmInit(void)
{
	const char *dir = getenv("FAIRSCHED_SIM_DIR");

	pthread_mutex_lock(&dcgm.lock);
	if (!dcgm.gpu_count && dir)
		for (unsigned int i = 0; i < SIM_MAX_GPUS; i++) {
			dcgm.gpus[i] = map_gpu(dir, i);
			if (!dcgm.gpus[i])
				break;
			dcgm.gpu_count = i + 1;
			for (unsigned int k = 0; k < SIM_MAX_INSTANCES; k++)
				dcgm.gpus[sim_instance_index(i, k)] = map_gpu(dir, sim_instance_index(i, k));
		}
	dcgm.is_initialised = true;
	return connection_done(DCGM_ST_OK);
}

/* With the lock held. */
static void connection_end(struct connection *c)
{
	sampler_stop(c);
	if (!c->is_embedded)
		close(c->socket);
	pthread_cond_destroy(&c->changed);
	memset(c, 0, sizeof(*c));
}

DCGM_API dcgmReturn dcgmShutdown(void)
{
	pthread_mutex_lock(&dcgm.lock);
	if (!dcgm.is_initialised)
		return connection_done(DCGM_ST_UNINITIALIZED);
	for (unsigned int i = 0; i < MAX_CONNECTIONS; i++)
		if (connections[i].is_open)
			connection_end(&connections[i]);
	for (unsigned int i = 0; i < SIM_MAX_DEVICES; i++)
		if (dcgm.gpus[i]) {
			munmap(dcgm.gpus[i], sizeof(struct sim_gpu));
			dcgm.gpus[i] = NULL;
		}
	dcgm.gpu_count = 0;
	dcgm.is_initialised = false;
	return connection_done(DCGM_ST_OK);
}

uint32_t all_gpus(void)
{
	return (uint32_t)((1ull << dcgm.gpu_count) - 1);
}

/* One byte there, one byte back. */
static dcgmReturn ask_engine(const struct connection *c)
{
	struct pollfd wait = {.fd = c->socket, .events = POLLIN};
	char byte = 'p';

	if (c->is_embedded)
		return DCGM_ST_OK;
	if (send(c->socket, &byte, 1, MSG_NOSIGNAL) != 1)
		return DCGM_ST_CONNECTION_NOT_VALID;
	if (poll(&wait, 1, ANSWER_MS) == 0)
		return DCGM_ST_TIMEOUT;
	return recv(c->socket, &byte, 1, 0) == 1 ? DCGM_ST_OK : DCGM_ST_CONNECTION_NOT_VALID;
}

static struct connection *find_connection(dcgmHandle handle)
{
	for (unsigned int i = 0; i < MAX_CONNECTIONS; i++) {
		struct connection *c = &connections[i];

		if (c->is_open && !c->is_ending &&
		    handle == (c->is_embedded ? (dcgmHandle)DCGM_EMBEDDED_HANDLE : i + 1))
			return c;
	}
	return NULL;
}

struct connection *connection_use(dcgmHandle handle, dcgmReturn *rc)
{
	struct connection *c;

	pthread_mutex_lock(&dcgm.lock);
	c = find_connection(handle);
	if (!dcgm.is_initialised)
		*rc = DCGM_ST_UNINITIALIZED;
	else
		*rc = c ? ask_engine(c) : DCGM_ST_BADPARAM;
	if (*rc == DCGM_ST_OK)
		return c;
	pthread_mutex_unlock(&dcgm.lock);
	return NULL;
}

dcgmReturn connection_done(dcgmReturn rc)
{
	pthread_mutex_unlock(&dcgm.lock);
	return rc;
}

/* Takes a free place. With the lock held. */
static struct connection *connection_begin(int socket, bool is_embedded, dcgmHandle *handle)
{
	for (unsigned int i = 0; i < MAX_CONNECTIONS; i++) {
		struct connection *c = &connections[i];

		if (c->is_open)
			continue;
		memset(c, 0, sizeof(*c));
		c->is_open = true;
		c->is_embedded = is_embedded;
		c->socket = socket;
		pthread_cond_init(&c->changed, NULL);
		*handle = is_embedded ? (dcgmHandle)DCGM_EMBEDDED_HANDLE : i + 1;
		return c;
	}
	return NULL;
}

static int dial_unix(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

static int dial_tcp(const char *address, unsigned int timeout_ms)
{
	struct timeval patience = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
	char host[256];
	char *port;
	int fd = -1;

	snprintf(host, sizeof(host), "%s", address);
	port = strrchr(host, ':');
	if (port)
		*port++ = '\0';
	if (getaddrinfo(host, port ? port : DEFAULT_PORT, &hints, &found))
		return -1;
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
		if (connect(fd, found->ai_addr, found->ai_addrlen)) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(found);
	return fd;
}

static dcgmReturn open_remote(const char *address, bool is_unix, unsigned int timeout_ms, dcgmHandle *handle)
{
	int fd;

	pthread_mutex_lock(&dcgm.lock);
	if (!dcgm.is_initialised)
		return connection_done(DCGM_ST_UNINITIALIZED);
	fd = is_unix ? dial_unix(address) : dial_tcp(address, timeout_ms ? timeout_ms : CONNECT_MS);
	if (fd < 0)
		return connection_done(DCGM_ST_CONNECTION_NOT_VALID);
	if (!connection_begin(fd, false, handle)) {
		close(fd);
		return connection_done(DCGM_ST_GENERIC_ERROR);
	}
	return connection_done(DCGM_ST_OK);
}

DCGM_API dcgmReturn dcgmConnect_v2(const char *address, struct connect_params_v2 *params, dcgmHandle *handle)
{
	bool is_first;

	if (!address || !address[0] || !params || !handle)
		return DCGM_ST_BADPARAM;
	/* The first version ended before the timeout. */
	is_first = params->version == VERSION_OF(2 * sizeof(unsigned int), 1);
	if (!is_first && params->version != VERSION_OF(sizeof(*params), 2))
		return DCGM_ST_VER_MISMATCH;
	return open_remote(address, !is_first && params->is_unix, is_first ? 0 : params->timeout_ms, handle);
}

DCGM_API dcgmReturn dcgmConnect(const char *address, dcgmHandle *handle)
{
	struct connect_params_v2 params = {.version = VERSION_OF(sizeof(params), 2)};

	return dcgmConnect_v2(address, &params, handle);
}

DCGM_API dcgmReturn dcgmConnect_v3(const char *address, struct connect_params_v3 *params, dcgmHandle *handle)
{
	if (!address || !params || !handle)
		return DCGM_ST_BADPARAM;
	if (params->version != VERSION_OF(sizeof(*params), 1))
		return DCGM_ST_VER_MISMATCH;
	if (!strncmp(address, "unix://", 7))
		return open_remote(address + 7, true, params->timeout_ms, handle);
	if (!strncmp(address, "tcp://", 6))
		return open_remote(address + 6, false, params->timeout_ms, handle);
	return DCGM_ST_BADPARAM;
}

DCGM_API dcgmReturn dcgmStartEmbedded(int mode, dcgmHandle *handle)
{
	if (!handle || mode < 1 || mode > 2)
		return DCGM_ST_BADPARAM;
	pthread_mutex_lock(&dcgm.lock);
	if (!dcgm.is_initialised)
		return connection_done(DCGM_ST_UNINITIALIZED);
	*handle = DCGM_EMBEDDED_HANDLE;
	if (!find_connection(*handle) && !connection_begin(-1, true, handle))
		return connection_done(DCGM_ST_INIT_ERROR);
	return connection_done(DCGM_ST_OK);
}

DCGM_API dcgmReturn dcgmStartEmbedded_v2(struct embedded_params_v1 *params)
{
	if (!params)
		return DCGM_ST_BADPARAM;
	if (params->version != VERSION_OF(sizeof(*params), 1))
		return DCGM_ST_VER_MISMATCH;
	return dcgmStartEmbedded(params->mode, &params->handle);
}

static dcgmReturn close_handle(dcgmHandle handle, bool is_embedded)
{
	struct connection *c;

	pthread_mutex_lock(&dcgm.lock);
	if (!dcgm.is_initialised)
		return connection_done(DCGM_ST_UNINITIALIZED);
	c = find_connection(handle);
	if (!c || c->is_embedded != is_embedded)
		return connection_done(DCGM_ST_BADPARAM);
	connection_end(c);
	return connection_done(DCGM_ST_OK);
}

DCGM_API dcgmReturn dcgmStopEmbedded(dcgmHandle handle)
{
	return close_handle(handle, true);
}

DCGM_API dcgmReturn dcgmDisconnect(dcgmHandle handle)
{
	return close_handle(handle, false);
}

DCGM_API dcgmReturn dcgmVersionInfo(struct version_info *info)
{
	const char *version = getenv("FAIRSCHED_SIM_DCGM_VERSION");

	if (!info)
		return DCGM_ST_BADPARAM;
	if (info->version != VERSION_OF(sizeof(*info), 2))
		return DCGM_ST_VER_MISMATCH;
	snprintf(info->text, sizeof(info->text), "version:%s;arch:x86_64;buildtype:simulated",
		 version ? version : "4.6.0");
	return DCGM_ST_OK;
}

DCGM_API dcgmReturn dcgmHostengineVersionInfo(dcgmHandle handle, struct version_info *info)
{
	dcgmReturn rc;

	if (!connection_use(handle, &rc))
		return rc;
	return connection_done(dcgmVersionInfo(info));
}

DCGM_API dcgmReturn dcgmHostengineIsHealthy(dcgmHandle handle, struct health *health)
{
	dcgmReturn rc;

	if (!health)
		return DCGM_ST_BADPARAM;
	if (health->version != VERSION_OF(sizeof(*health), 1))
		return DCGM_ST_VER_MISMATCH;
	if (!connection_use(handle, &rc))
		return rc;
	health->overall = 0;
	return connection_done(DCGM_ST_OK);
}

_Static_assert(sizeof(struct connect_params_v2) == 16 && sizeof(struct connect_params_v3) == 12,
	       "as in DCGM");
_Static_assert(sizeof(struct version_info) == 516, "as in DCGM");
_Static_assert(sizeof(struct embedded_params_v1) == 72, "as in DCGM");
