// SPDX-License-Identifier: Apache-2.0
/*
 * Times calls of one libcuda export that do no work of their own: cuGraphLaunch without a context. The library refuses it
 * at once, while a probe at its entry sees a submission like any other and does all it does for a real one.
 *
 *   probe_caller LIBCUDA     each line on stdin: "BATCHES CALLS"; answer: ns per call, one number per batch
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define STREAM_LEGACY ((void *)1)
/* Not NULL, for which the probe does less. Without a context the library comes to no graph. */
#define SOME_GRAPH ((void *)16)
#define NS_PER_S 1000000000ull

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

int main(int argc, char **argv)
{
	void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
	int (*init)(unsigned int) = library ? (int (*)(unsigned int))dlsym(library, "cuInit") : NULL;
	int (*launch)(void *, void *) =
		library ? (int (*)(void *, void *))dlsym(library, "cuGraphLaunch") : NULL;
	unsigned long batches, calls;

	/* After cuInit the first branch of every export goes the way it goes in a program at work. */
	if (!init || !launch || init(0)) {
		fprintf(stderr, "probe_caller: %s\n", library ? "cuInit or cuGraphLaunch fails" : dlerror());
		return 1;
	}
	if (launch(SOME_GRAPH, STREAM_LEGACY) == 0) {
		fprintf(stderr, "probe_caller: a launch without a context was accepted\n");
		return 1;
	}
	while (scanf("%lu %lu", &batches, &calls) == 2) {
		for (unsigned long b = 0; b < batches; b++) {
			uint64_t start = now_ns();

			for (unsigned long i = 0; i < calls; i++)
				launch(SOME_GRAPH, STREAM_LEGACY);
			printf("%s%.1f", b ? " " : "", (double)(now_ns() - start) / (double)calls);
		}
		printf("\n");
		fflush(stdout);
	}
	return 0;
}
