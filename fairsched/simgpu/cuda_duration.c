// SPDX-License-Identifier: Apache-2.0
/*
 * How long a kernel takes. One of a module without an image (NULL, or a first byte of 0) is told so:
 * kernelParams[0] points at a uint64_t of nanoseconds; without parameters the function's name tells ("k_250us",
 * "spin_3ms", "x_700ns"; DEFAULT_KERNEL_NS if it does not).
 * The arguments of a real module's kernel are its own. It takes what FAIRSCHED_SIM_KERNEL_US says, a list such as
 * "half=473,one=967.5,50": the first entry whose name is a part of the kernel's (compilers decorate names), or that
 * has no name. Otherwise DEFAULT_KERNEL_NS.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

#define DEFAULT_KERNEL_NS 100000ull
#define MAX_KERNEL_NS 3600000000000ull
#define VARIABLE "FAIRSCHED_SIM_KERNEL_US"

static uint64_t name_ns(const char *name)
{
	const char *digits = strpbrk(name, "0123456789");
	char *unit;
	uint64_t n;

	if (!digits)
		return DEFAULT_KERNEL_NS;
	n = strtoull(digits, &unit, 10);
	if (!strncmp(unit, "ns", 2))
		return n;
	if (!strncmp(unit, "us", 2))
		return n * 1000;
	if (!strncmp(unit, "ms", 2))
		return n * 1000000;
	return DEFAULT_KERNEL_NS;
}

static bool parse_us(const char *text, uint64_t *ns)
{
	char *end;
	double us = strtod(text, &end);

	if (end == text || *end || !(us > 0) || us * 1e3 > (double)MAX_KERNEL_NS)
		return false;
	*ns = (uint64_t)(us * 1e3 + 0.5);
	return true;
}

/* All of the list is read, also past what fits: a mistake in it is one for each kernel. */
static bool listed_ns(char *list, const char *name, uint64_t *ns)
{
	bool found = false;
	char *save = NULL;

	for (char *e = strtok_r(list, ",", &save); e; e = strtok_r(NULL, ",", &save)) {
		char *sign = strchr(e, '=');
		uint64_t own;

		if (!parse_us(sign ? sign + 1 : e, &own)) {
			fprintf(stderr,
				"libcuda stand-in: %s: %s: say NAME=MICROSECONDS, or MICROSECONDS for all\n",
				VARIABLE, e);
			return false;
		}
		if (sign)
			*sign = 0;
		if (!found && (!sign || strstr(name, e))) {
			*ns = own;
			found = true;
		}
	}
	return true;
}

CUresult duration_of(struct cu_function *f)
{
	const char *value = getenv(VARIABLE);
	bool is_good = true;
	char *list;

	f->is_told = !f->module->image;
	f->default_ns = f->is_told ? name_ns(f->name) : DEFAULT_KERNEL_NS;
	if (f->is_told || !value)
		return CUDA_SUCCESS;
	list = strdup(value);
	is_good = list && listed_ns(list, f->name, &f->default_ns);
	free(list);
	return is_good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

uint64_t duration_ns(const struct cu_function *f, void **params)
{
	uint64_t ns = f->default_ns;

	if (f->is_told && params && params[0])
		memcpy(&ns, params[0], sizeof(ns));
	return ns < MAX_KERNEL_NS ? ns : MAX_KERNEL_NS;
}
