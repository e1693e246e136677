// SPDX-License-Identifier: Apache-2.0
/*
 * A hostile tenant of the driver: it makes as many entries of one of our tables as it is told to, and keeps them. On a
 * plain file that stands for the driver's node every call "succeeds".
 *
 *	crowd NODE PLAY COUNT [CGROUP]
 *
 * Says "ready", plays when it is given a line, says "done", and ends with its input. CGROUP: where it makes its cgroups.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct alloc {
	uint32_t root, parent, object, class;
	uint64_t params, rights;
	uint32_t params_size, flags, status, pad;
};
struct free_call {
	uint32_t root, parent, object, status;
};

#define ALLOC _IOWR('F', 0x2b, struct alloc)
#define FREE _IOWR('F', 0x29, struct free_call)
#define CLIENT 0xc2000000u
#define DEVICE 1u
#define SUBDEVICE 0x2080
#define MOST_THREADS 16384

static const char *path, *cgroup;
static int node;

static void make(int file, uint32_t client, uint32_t parent, uint32_t object, uint32_t class, void *params)
{
	struct alloc a = {client, parent, object, class, (uintptr_t)params, 0, 0, 0, 0, 0};

	ioctl(file, ALLOC, &a);
}

static void make_client(int file, uint32_t client)
{
	make(file, client, 0, client, 0x41, NULL);
}

static void drop(int file, uint32_t client)
{
	struct free_call f = {client, 0, client, 0};

	ioctl(file, FREE, &f);
}

static void clients(int count)
{
	for (int i = 0; i < count; i++)
		make_client(node, CLIENT + i);
}

/* Each had a client once. */
static void files(int count)
{
	struct rlimit most = {count + 64, count + 64};

	setrlimit(RLIMIT_NOFILE, &most);
	for (int i = 0; i < count; i++) {
		int file = open(path, O_RDWR);

		make_client(file, CLIENT + i);
		drop(file, CLIENT + i);
	}
}

static void objects(int count)
{
	uint32_t device[14] = {0};

	make_client(node, CLIENT);
	make(node, CLIENT, CLIENT, DEVICE, 0x80, device);
	for (int i = 1; i < count; i++)
		make(node, CLIENT, DEVICE, DEVICE + i, SUBDEVICE, NULL);
}

static pthread_barrier_t have_called;

static void *call(void *unused)
{
	drop(node, 0);
	pthread_barrier_wait(&have_called);
	for (;;)
		pause();
	return unused;
}

static void threads(int count)
{
	pthread_attr_t small;
	pthread_t one;
	int made = 0;

	make_client(node, CLIENT);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 32768);
	pthread_barrier_init(&have_called, NULL, count + 1);
	while (made < count && !pthread_create(&one, &small, call, NULL))
		made++;
	if (made < count)
		exit(3);
	pthread_barrier_wait(&have_called);
}

static int enter(const char *directory)
{
	char procs[512];
	int file, is_in;

	snprintf(procs, sizeof(procs), "%s/cgroup.procs", directory);
	file = open(procs, O_WRONLY);
	is_in = file >= 0 && write(file, "0", 1) == 1;
	close(file);
	return is_in;
}

/* In each of so many cgroups it calls once, with a client while it is there. */
static void cgroups(int count)
{
	char last[256] = "", next[256];

	for (int i = 0; i < count; i++) {
		snprintf(next, sizeof(next), "%s/%d", cgroup, i);
		if (mkdir(next, 0755) || !enter(next))
			exit(4);
		if (last[0])
			rmdir(last);
		strcpy(last, next);
		make_client(node, CLIENT + i);
		drop(node, CLIENT + i);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*play)(int);
	} plays[] = {{"clients", clients},
		     {"files", files},
		     {"objects", objects},
		     {"threads", threads},
		     {"cgroups", cgroups}};

	if (argc < 4)
		return 2;
	path = argv[1];
	cgroup = argc > 4 ? argv[4] : "";
	node = open(path, O_RDWR);
	printf("ready\n");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++) {
		if (!strcmp(plays[i].name, argv[2]))
			plays[i].play(atoi(argv[3]));
	}
	printf("done\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
