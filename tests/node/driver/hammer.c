// SPDX-License-Identifier: Apache-2.0
/*
 * Threads that allocate below a device and free again, while it is freed and made anew all the time, on a plain file
 * that stands for the driver's node: every call "succeeds". In the end the device is freed and the client is left.
 *
 *	hammer NODE THREADS ROUNDS
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
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
#define CLIENT 0xc1df0000u
#define DEVICE (CLIENT + 1)
#define GROUP (CLIENT + 2)
#define CHANNEL (CLIENT + 3)

static int node;
static volatile int is_over;

static void make(uint32_t parent, uint32_t object, uint32_t class, void *params)
{
	struct alloc a = {CLIENT, parent, object, class, (uintptr_t)params, 0, 0, 0, 0, 0};

	ioctl(node, ALLOC, &a);
}

static void drop(uint32_t object)
{
	struct free_call f = {CLIENT, 0, object, 0};

	ioctl(node, FREE, &f);
}

static void *work(void *arg)
{
	uint32_t own = 0xca000000u + (uint32_t)(uintptr_t)arg * 0x10000;
	uint64_t memory[16] = {[8] = 1 << 20};

	for (uint32_t turn = 0; !is_over; turn++) {
		uint32_t handle = own + turn % 64 * 2;

		make(DEVICE, handle, 0x40, memory);
		make(CHANNEL, handle + 1, 0xc6c0, NULL);
		if (turn % 3) {
			drop(handle);
			drop(handle + 1);
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[16];
	uint32_t device[14] = {0};
	int count, rounds;

	if (argc != 4)
		return 2;
	node = open(argv[1], O_RDWR);
	count = atoi(argv[2]) < 16 ? atoi(argv[2]) : 16;
	rounds = atoi(argv[3]);
	make(0, CLIENT, 0x41, NULL);
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i);
	for (int round = 0; round < rounds; round++) {
		make(CLIENT, DEVICE, 0x80, device);
		make(DEVICE, GROUP, 0xa06c, NULL);
		make(GROUP, CHANNEL, 0xc56f, NULL);
		usleep(20);
		if (round % 2)
			drop(GROUP);
		drop(DEVICE);
	}
	is_over = 1;
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("done\n");
	fflush(stdout);
	return getchar() == EOF;
}
