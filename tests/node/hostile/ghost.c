// SPDX-License-Identifier: Apache-2.0
/*
 * A process whose first thread ends early and whose others go on using the GPU, as some runtimes do.
 *
 *	ghost stays|leaves THREADS
 *
 * Each of THREADS makes a context and keeps it busy until the process is killed. "leaves": the first thread has ended
 * by then. It says "ready" when all contexts have work.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAUNCHES 20

static int (*init)(unsigned int), (*context_new)(void **, unsigned int, int), (*synchronize)(void);
static int (*module_load)(void **, const void *), (*function_of)(void **, void *, const char *);
static int (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		     unsigned int, unsigned int, void *, void **, void **);
static pthread_barrier_t begun;

static void must(int rc, const char *what)
{
	if (!rc)
		return;
	fprintf(stderr, "ghost: %s failed with %d\n", what, rc);
	exit(1);
}

static void submit(void *function)
{
	for (int i = 0; i < LAUNCHES; i++)
		must(launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static void *work(void *arg)
{
	void *context, *module, *function;

	(void)arg;
	must(context_new(&context, 0, 0), "cuCtxCreate");
	must(module_load(&module, ""), "cuModuleLoadData");
	must(function_of(&function, module, "work_500us"), "cuModuleGetFunction");
	submit(function);
	pthread_barrier_wait(&begun);
	for (;;) {
		submit(function);
		must(synchronize(), "cuCtxSynchronize");
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void **at;
	} wanted[] = {
		{"cuInit", (void **)&init},
		{"cuCtxCreate_v2", (void **)&context_new},
		{"cuCtxSynchronize", (void **)&synchronize},
		{"cuModuleLoadData", (void **)&module_load},
		{"cuModuleGetFunction", (void **)&function_of},
		{"cuLaunchKernel", (void **)&launch},
	};
	int threads = argc == 3 ? atoi(argv[2]) : 0;
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	pthread_t thread;

	if (threads < 1 || !library) {
		fprintf(stderr, "ghost stays|leaves THREADS, and a libcuda to be found: %s\n",
			library ? "" : dlerror());
		return 2;
	}
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		*wanted[i].at = dlsym(library, wanted[i].name);
		must(!*wanted[i].at, wanted[i].name);
	}
	must(init(0), "cuInit");
	pthread_barrier_init(&begun, NULL, (unsigned int)threads + 1);
	for (int i = 0; i < threads; i++)
		must(pthread_create(&thread, NULL, work, NULL), "pthread_create");
	pthread_barrier_wait(&begun);
	puts("ready");
	fflush(stdout);
	if (!strcmp(argv[1], "leaves"))
		pthread_exit(NULL);
	pause();
	return 0;
}
