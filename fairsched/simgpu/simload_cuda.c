// SPDX-License-Identifier: Apache-2.0
/* Finding the driver as the CUDA runtime does, and the bits of arithmetic the kinds share. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "simload.h"
#include "simtable.h"

#define CUDA_VERSION 12040

void must(int rc, const char *what)
{
	if (rc == 0)
		return;
	if (!stopping)
		fprintf(stderr, "simload: %s failed with %d\n", what, rc);
	exit(1);
}

#define ROW(field, name, impl) {#name, offsetof(struct cuda, field)},
static const struct {
	const char *name;
	size_t slot;
} wanted[] = {SIM_TABLE(ROW)};

#define WANTED (sizeof(wanted) / sizeof(wanted[0]))

static void **slot_of(struct cuda *cu, size_t i)
{
	return (void **)(void *)((char *)cu + wanted[i].slot);
}

/* Behind the exports: no instruction of an exported function is executed but this one's. */
static bool load_past_exports(struct cuda *cu, void *lib)
{
	static const unsigned char id[16] = SIM_TABLE_ID;
	const struct sim_table *table;
	int (*get)(const void **, const void *);

	*(void **)&get = dlsym(lib, "cuGetExportTable");
	if (!get || get((const void **)&table, id) || table->bytes != sizeof(*table)) {
		fprintf(stderr, "simload: the library has no export table of this version\n");
		return false;
	}
	for (size_t i = 0; i < WANTED; i++)
		*slot_of(cu, i) = table->entries[i];
	return true;
}

bool cuda_load(struct cuda *cu, const char *path, bool past_exports)
{
	int (*get)(const char *, void **, int, uint64_t, int *);
	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		fprintf(stderr, "simload: %s\n", dlerror());
		return false;
	}
	if (past_exports)
		return load_past_exports(cu, lib);
	*(void **)&get = dlsym(lib, "cuGetProcAddress_v2");
	if (!get)
		return false;
	for (size_t i = 0; i < WANTED; i++)
		if (get(wanted[i].name, slot_of(cu, i), CUDA_VERSION, 0, NULL)) {
			fprintf(stderr, "simload: %s has no %s\n", path, wanted[i].name);
			return false;
		}
	/* Later contexts than the primary one: the three-argument spelling, whatever the version. */
	*(void **)&cu->ctx_create = dlsym(lib, "cuCtxCreate_v2");
	return cu->ctx_create != NULL;
}

void lane_open(struct lane *l)
{
	const struct cuda *cu = l->cu;
	void *module;
	int dev;

	must(cu->device_get(&dev, l->o->device), "cuDeviceGet");
	if (l->index == 0) {
		must(cu->primary_retain(&l->ctx, dev), "cuDevicePrimaryCtxRetain");
		must(cu->ctx_set(l->ctx), "cuCtxSetCurrent");
	} else {
		must(cu->ctx_create(&l->ctx, 0, dev), "cuCtxCreate");
	}
	must(cu->module_load(&module, image_of(l->o)), "cuModuleLoadData");
	must(cu->module_function(&l->function, module, "work_100us"), "cuModuleGetFunction");
	for (int i = 0; i < l->o->streams; i++)
		must(cu->stream_create(&l->streams[i], 1), "cuStreamCreate");
	if (l->o->alloc_bytes)
		must(cu->mem_alloc(&l->buffer, l->o->alloc_bytes), "cuMemAlloc");
	gpu_log_open(l);
}

uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

void sleep_us(double us)
{
	uint64_t until = now_ns() + (uint64_t)(us * 1e3);
	struct timespec ts = {.tv_sec = (time_t)(until / 1000000000ull),
			      .tv_nsec = (long)(until % 1000000000ull)};

	if (us > 0)
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

/* splitmix64: the same steps for the same seed, wherever it runs. */
double random_unit(uint64_t *rng)
{
	uint64_t z = *rng += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (double)((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

double random_exponential(uint64_t *rng, double mean)
{
	return -mean * log(1.0 - random_unit(rng));
}

static double random_normal(uint64_t *rng)
{
	double radius = sqrt(-2.0 * log(1.0 - random_unit(rng)));

	return radius * cos(2.0 * M_PI * random_unit(rng));
}

/* Mean kernel_us whatever the jitter; jitter_ratio is the relative spread. */
uint64_t random_kernel_ns(struct lane *l)
{
	double j = l->o->jitter_ratio;
	double factor = 1.0;

	if (j > 0 && l->o->jitter_kind[0] == 'u')
		factor = 1.0 + j * (2.0 * random_unit(&l->rng) - 1.0);
	else if (j > 0)
		factor = exp(j * random_normal(&l->rng) - j * j / 2);
	return (uint64_t)(l->o->kernel_us * 1e3 * l->stretch_ratio * (factor > 0 ? factor : 0));
}
