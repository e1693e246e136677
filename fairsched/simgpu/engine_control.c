// SPDX-License-Identifier: Apache-2.0
/* The control socket: who the clients are, when they end, and when the engine itself must. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "engine.h"

enum watch_kind {
	WATCH_LISTEN,
	WATCH_STOP,
	WATCH_CLIENT,
	WATCH_PROCESS,
	WATCH_LEASHED
};

struct watch {
	enum watch_kind kind;
	int fd;
	uint32_t pid;
	struct watch *peer; /* a client's process, and the other way round */
	struct watch *next; /* leashed processes */
	bool is_dead;       /* freed after the batch of events that may still name it */
};

static int epoll_fd;
static struct watch *leashed;

static struct watch *watch_add(enum watch_kind kind, int fd, uint32_t pid)
{
	struct watch *w = calloc(1, sizeof(*w));
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = w};

	if (!w)
		return NULL;
	w->kind = kind;
	w->fd = fd;
	w->pid = pid;
	epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &ev);
	return w;
}

static int open_pidfd(uint32_t pid)
{
	return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

static void accept_client(int listen_fd)
{
	int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	struct ucred cred;
	socklen_t len = sizeof(cred);
	struct watch *w;
	int pidfd;

	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0) {
		close(fd);
		return;
	}
	w = watch_add(WATCH_CLIENT, fd, (uint32_t)cred.pid);
	pidfd = open_pidfd((uint32_t)cred.pid);
	if (!w || pidfd < 0)
		return; /* the end of the connection still tells us */
	w->peer = watch_add(WATCH_PROCESS, pidfd, (uint32_t)cred.pid);
	if (w->peer)
		w->peer->peer = w;
}

static void watch_retire(struct watch *w, struct watch **retired)
{
	close(w->fd);
	w->is_dead = true;
	w->next = *retired;
	*retired = w;
}

static void drop_client(struct watch *client, struct watch **retired)
{
	client_gone(client->fd);
	if (client->peer)
		watch_retire(client->peer, retired);
	watch_retire(client, retired);
}

static void leash(uint32_t pid)
{
	int fd = open_pidfd(pid);
	struct watch *w = fd < 0 ? NULL : watch_add(WATCH_LEASHED, fd, pid);

	if (!w)
		return;
	w->next = leashed;
	leashed = w;
}

static void unleash(struct watch *w, struct watch **retired)
{
	struct watch **link = &leashed;

	while (*link != w)
		link = &(*link)->next;
	*link = w->next;
	watch_retire(w, retired);
}

static void serve_client(struct watch *w, struct watch **retired)
{
	struct sim_request rq;
	struct sim_reply rp;

	if (recv(w->fd, &rq, sizeof(rq), MSG_DONTWAIT) != (ssize_t)sizeof(rq)) {
		drop_client(w, retired);
		return;
	}
	if (rq.op == SIM_RPC_LEASH) {
		leash((uint32_t)rq.a);
		rp = (struct sim_reply){0};
	} else {
		client_request(w->fd, w->pid, &rq, &rp);
	}
	send(w->fd, &rp, sizeof(rp), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Returns false when it is time to end. */
static bool handle(struct watch *w, struct watch **retired)
{
	if (w->is_dead)
		return true;
	switch (w->kind) {
	case WATCH_LISTEN:
		accept_client(w->fd);
		return true;
	case WATCH_CLIENT:
		serve_client(w, retired);
		return true;
	case WATCH_PROCESS:
		drop_client(w->peer, retired);
		return true;
	case WATCH_LEASHED:
		unleash(w, retired);
		return true;
	default:
		return false;
	}
}

/* Frozen or stopped processes die of SIGKILL too. */
static void kill_leashed(void)
{
	for (struct watch *w = leashed; w; w = w->next)
		syscall(SYS_pidfd_send_signal, w->fd, SIGKILL, NULL, 0);
}

static sigset_t stop_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	return set;
}

/* Before any thread starts: the signals are read from a descriptor, in control_run. */
void control_block_signals(void)
{
	sigset_t set = stop_signals();

	sigprocmask(SIG_BLOCK, &set, NULL);
}

/* Serve until stop_fd is readable or at its end, or the parent process has ended. */
int control_run(int listen_fd, int stop_fd)
{
	int parent_fd = open_pidfd((uint32_t)getppid());
	sigset_t signals = stop_signals();
	int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	struct epoll_event events[32];
	bool running = true;

	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0 || !watch_add(WATCH_LISTEN, listen_fd, 0) || !watch_add(WATCH_STOP, stop_fd, 0))
		return 1;
	if (signal_fd >= 0)
		watch_add(WATCH_STOP, signal_fd, 0);
	if (parent_fd >= 0)
		watch_add(WATCH_STOP, parent_fd, 0);
	while (running) {
		struct watch *retired = NULL;
		int n = epoll_wait(epoll_fd, events, 32, -1);

		for (int i = 0; i < n; i++)
			running &= handle(events[i].data.ptr, &retired);
		while (retired) {
			struct watch *next = retired->next;

			free(retired);
			retired = next;
		}
	}
	kill_leashed();
	return 0;
}
