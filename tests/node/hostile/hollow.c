/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda that a tenant has built: nothing behind it, every call succeeds at once. Its handles are numbers.
 *
 * play_*: what a hostile program does with it, in C, because it has to be quick. They call the exports by their own
 * addresses, as any caller does.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default"), noinline, noclone))
#define KEEP asm volatile("" ::: "memory")

EXPORT int cuInit(unsigned flags)
{
	KEEP;
	return (int)(flags >> 31);
}

EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device)
{
	static uintptr_t made;

	KEEP;
	*context = (void *)(0x1000 + ++made * 16 + flags);
	(void)device;
	return 0;
}

EXPORT int cuCtxDestroy_v2(void *context)
{
	KEEP;
	return context == 0;
}

EXPORT int cuCtxSetCurrent(void *context)
{
	KEEP;
	return context == 0;
}

EXPORT int cuDeviceGetUuid(void *uuid, int device)
{
	KEEP;
	memset(uuid, 0, 16);
	memcpy(uuid, &device, sizeof(device));
	return 0;
}

EXPORT int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
			  unsigned bz, unsigned shared, void *stream, void **arguments, void **extra)
{
	KEEP;
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
	(void)arguments, (void)extra;
	return 0;
}

EXPORT int cuStreamSynchronize(void *stream)
{
	KEEP;
	(void)stream;
	return 0;
}

EXPORT int cuEventRecord(void *event, void *stream)
{
	KEEP;
	(void)event, (void)stream;
	return 0;
}

EXPORT int cuEventSynchronize(void *event)
{
	KEEP;
	(void)event;
	return 0;
}

EXPORT int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	KEEP;
	(void)stream, (void)event, (void)flags;
	return 0;
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int launch(void)
{
	return cuLaunchKernel((void *)16, 1, 1, 1, 1, 1, 1, 0, (void *)0, 0, 0);
}

/* `processes` children with `contexts` each, not all at once; every one launches so often, and none ever asks. */
EXPORT void play_contexts(int processes, int contexts, int launches)
{
	for (int i = 0; i < processes; i++) {
		if (fork()) {
			usleep(15000);
			continue;
		}
		cuInit(0);
		for (int j = 0; j < contexts; j++) {
			void *context;

			cuCtxCreate_v2(&context, 0, 0);
			cuCtxSetCurrent(context);
			for (int k = 0; k < launches; k++)
				launch();
		}
		for (;;)
			pause();
	}
}

EXPORT long play_init(double seconds)
{
	double end = now_s() + seconds;
	long calls = 0;

	while (now_s() < end)
		for (int i = 0; i < 1000; i++, calls++)
			cuInit(0);
	return calls;
}

/* Work that is over as soon as it is asked for: two events a turn. */
EXPORT long play_bursts(double seconds)
{
	double end = now_s() + seconds;
	long calls = 0;
	void *context;

	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuCtxSetCurrent(context);
	while (now_s() < end) {
		for (int i = 0; i < 1000; i++, calls++) {
			launch();
			cuStreamSynchronize(0);
		}
	}
	return calls;
}

/* One context on a device that no host has, and work in it now and then: which GPU that is, is anybody's guess. */
EXPORT long play_nowhere(double seconds)
{
	double end = now_s() + seconds;
	long calls = 0;
	void *context;

	cuInit(0);
	cuCtxCreate_v2(&context, 0, 99);
	cuCtxSetCurrent(context);
	for (; now_s() < end; calls++) {
		launch();
		cuStreamSynchronize(0);
		usleep(10000);
	}
	return calls;
}

/* An honest one: launches, records an event, and asks for it after so long. */
EXPORT long play_remember(double seconds)
{
	void *context;

	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuCtxSetCurrent(context);
	launch();
	cuEventRecord((void *)0x42, 0);
	usleep((useconds_t)(seconds * 1e6));
	cuEventSynchronize((void *)0x42);
	return 1;
}

/* Events and streams without end, each handle of its own: an event is recorded, and a new stream waits for it. */
EXPORT long play_handles(double seconds)
{
	double end = now_s() + seconds;
	uintptr_t handle = 0x10000;
	void *context;

	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuCtxSetCurrent(context);
	launch();
	while (now_s() < end) {
		for (int i = 0; i < 1000; i++) {
			handle += 16;
			cuEventRecord((void *)handle, 0);
			if (i % 4 == 0)
				cuStreamWaitEvent((void *)(handle + 8), (void *)handle, 0);
		}
	}
	return (long)(handle >> 4);
}

static void *take(void *context)
{
	cuCtxSetCurrent(context);
	return 0;
}

/* Threads without end, each of which takes a context and ends; of a process that says nothing else of itself. */
EXPORT long play_quiet_threads(double seconds)
{
	double end = now_s() + seconds;
	long threads = 0;
	void *context = (void *)0x1000;

	while (now_s() < end) {
		pthread_t thread;

		if (pthread_create(&thread, 0, take, context))
			return -1;
		pthread_join(thread, 0);
		threads++;
	}
	return threads;
}

EXPORT long play_threads(double seconds)
{
	void *context;

	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuCtxSetCurrent(context);
	return play_quiet_threads(seconds);
}

/* An honest one: of two contexts it takes the second, and works in it after so long. */
EXPORT long play_return(double seconds)
{
	void *first, *second;

	cuInit(0);
	cuCtxCreate_v2(&first, 0, 0);
	cuCtxCreate_v2(&second, 0, 0);
	cuCtxSetCurrent(second);
	usleep((useconds_t)(seconds * 1e6));
	launch();
	cuStreamSynchronize(0);
	return 1;
}

EXPORT void play_devices(int processes, int ordinals)
{
	for (int i = 0; i < processes; i++) {
		char uuid[16];

		if (fork())
			continue;
		cuInit(0);
		for (int device = 0; device < ordinals; device++)
			cuDeviceGetUuid(uuid, device);
		for (;;)
			pause();
	}
}

/* Goes through its cgroups, named 0, 1, ... below the one in HOLLOW_CGROUP, and works in each. Returns its moves. */
EXPORT long play_keys(double seconds, int cgroups)
{
	const char *top = getenv("HOLLOW_CGROUP");
	double end = now_s() + seconds;
	long moves = 0;
	void *context;

	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuCtxSetCurrent(context);
	while (top && now_s() < end) {
		char path[4096];
		int fd;

		snprintf(path, sizeof(path), "%s/%ld/cgroup.procs", top, moves % cgroups);
		fd = open(path, O_WRONLY);
		if (fd < 0)
			return -1;
		if (write(fd, "0", 1) == 1)
			moves++;
		close(fd);
		launch();
		cuStreamSynchronize(0);
	}
	return moves;
}

/* Makes a cgroup, goes there, works, and removes the one before, as quickly as it can: every id is new. */
EXPORT long play_reborn(double seconds)
{
	const char *top = getenv("HOLLOW_CGROUP");
	double end = now_s() + seconds;
	char path[4096], before[4096] = "";
	long moves = 0;
	void *context;

	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuCtxSetCurrent(context);
	while (top && now_s() < end) {
		int fd, length = snprintf(path, sizeof(path), "%s/again%ld", top, moves % 2);

		if (mkdir(path, 0755))
			return -1;
		strcat(path, "/cgroup.procs");
		fd = open(path, O_WRONLY);
		if (fd < 0 || write(fd, "0", 1) != 1)
			return -2;
		close(fd);
		if (*before && rmdir(before))
			return -3;
		memcpy(before, path, (size_t)length);
		before[length] = 0;
		moves++;
		launch();
		cuStreamSynchronize(0);
	}
	return moves;
}
