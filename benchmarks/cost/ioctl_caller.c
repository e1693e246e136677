// SPDX-License-Identifier: Apache-2.0
/*
 * Calls ioctl as a CUDA program does, in batches on request: "KIND BATCHES CALLS" on standard input, the
 * nanoseconds of one call of each batch as answer.
 *
 * control: RM_CONTROL on the driver's node, the most frequent call. memory: an allocation and its free, two calls.
 * other: an ioctl on a file that is not the driver's. none: getppid, a system call that is no ioctl.
 * On a plain file the kernel answers ENOTTY at once, so what is measured is what is added to it.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct alloc {
	uint32_t root, parent, object, class;
	uint64_t params, rights;
	uint32_t params_size, flags, status, pad;
};
struct free_call {
	uint32_t root, parent, object, status;
};
struct control {
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t params_size, status;
};

#define ALLOC _IOWR('F', 0x2b, struct alloc)
#define FREE _IOWR('F', 0x29, struct free_call)
#define CONTROL _IOWR('F', 0x2a, struct control)
#define CLIENT 0xc1de0000u

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static void make(int fd, uint32_t parent, uint32_t object, uint32_t class, void *params)
{
	struct alloc a = {CLIENT, parent, object, class, (uintptr_t)params, 0, 0, 0, 0, 0};

	ioctl(fd, ALLOC, &a);
}

static void run(int node, int other, const char *kind, int calls)
{
	uint64_t memory[16] = {[8] = 1 << 20};
	struct control c = {.client = CLIENT, .object = CLIENT + 1, .cmd = 0xa06c0101};
	struct free_call f = {CLIENT, CLIENT + 1, CLIENT + 9, 0};

	for (int i = 0; i < calls; i++) {
		if (!strcmp(kind, "control")) {
			ioctl(node, CONTROL, &c);
		} else if (!strcmp(kind, "memory")) {
			make(node, CLIENT + 1, CLIENT + 9, 0x40, memory);
			ioctl(node, FREE, &f);
		} else if (!strcmp(kind, "other")) {
			ioctl(other, CONTROL, &c);
		} else {
			syscall(SYS_getppid);
		}
	}
}

int main(int argc, char **argv)
{
	uint32_t device[14] = {0};
	char kind[16];
	int batches, calls, node, other;

	if (argc < 2)
		return 2;
	node = open(argv[1], O_RDWR);
	other = open("/dev/null", O_RDWR);
	while (scanf("%15s %d %d", kind, &batches, &calls) == 3) {
		/* Anew each time: the programs may have been attached only now. */
		make(node, 0, CLIENT, 0x41, NULL);
		make(node, CLIENT, CLIENT + 1, 0x80, device);
		run(node, other, kind, calls);
		for (int b = 0; b < batches; b++) {
			double start = now_ns();

			run(node, other, kind, calls);
			printf("%.1f ", (now_ns() - start) / calls);
		}
		printf("\n");
		fflush(stdout);
	}
	return 0;
}
