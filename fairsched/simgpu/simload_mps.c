// SPDX-License-Identifier: Apache-2.0
/* The socket of an MPS server: a load that is told to listen keeps every connection that comes, as long as it lives. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "simload.h"

#define BACKLOG 64

static int listener = -1;

static void *accept_all(void *unused)
{
	(void)unused;
	while (accept(listener, NULL, NULL) >= 0)
		;
	return NULL;
}

void listen_for_mps(void)
{
	const char *path = getenv("FAIRSCHED_SIM_MPS_LISTEN");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	pthread_t thread;

	if (!path || strlen(path) >= sizeof(address.sun_path))
		return;
	strcpy(address.sun_path, path);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(listener, BACKLOG) || pthread_create(&thread, NULL, accept_all, NULL)) {
		perror(path);
		exit(1);
	}
	pthread_detach(thread);
}
