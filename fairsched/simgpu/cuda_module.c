// SPDX-License-Identifier: Apache-2.0
/*
 * Modules and libraries, and the kernels and variables in them. The two are one thing here, and so are functions and
 * kernels: a handle of either is good where one of the other is asked for, as it is for launches in the real driver.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

struct cu_global {
	struct cu_global *next;
	char *name;
	CUdeviceptr address;
	uint64_t bytes;
};

static CUresult open_module(struct cu_module **out, const void *code)
{
	CUresult rc = need_init();
	struct cu_module *m;

	if (rc != CUDA_SUCCESS)
		return rc;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_init(&m->lock, NULL);
	if (code && *(const char *)code)
		m->image = image_load(code, &rc);
	if (rc != CUDA_SUCCESS) {
		free(m);
		return rc;
	}
	*out = m;
	return CUDA_SUCCESS;
}

static CUresult open_file(struct cu_module **out, const char *path)
{
	size_t bytes;
	char *code = path ? image_file(path, &bytes) : NULL;
	CUresult rc = code ? open_module(out, code) : CUDA_ERROR_FILE_NOT_FOUND;

	free(code);
	return rc;
}

static CUresult close_module(struct cu_module *m)
{
	struct cu_function *f, *next_f;
	struct cu_global *g, *next_g;

	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	for (f = m->functions; f; f = next_f) {
		next_f = f->next;
		free(f->name);
		free(f);
	}
	for (g = m->globals; g; g = next_g) {
		next_g = g->next;
		sim_cuMemFreeAsync(g->address, NULL);
		free(g->name);
		free(g);
	}
	image_free(m->image);
	free(m);
	return CUDA_SUCCESS;
}

CUresult sim_cuModuleLoadDataEx(struct cu_module **out, const void *image, unsigned int count,
				const int *options, void **values)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	(void)count, (void)options, (void)values; /* of a compiler that is not there */
	return rc == CUDA_SUCCESS ? open_module(out, image) : rc;
}

CUresult sim_cuModuleLoadData(struct cu_module **out, const void *image)
{
	return sim_cuModuleLoadDataEx(out, image, 0, NULL, NULL);
}

CUresult sim_cuModuleLoad(struct cu_module **out, const char *path)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	return rc == CUDA_SUCCESS ? open_file(out, path) : rc;
}

CUresult sim_cuModuleUnload(struct cu_module *m)
{
	return close_module(m);
}

/* CU_MODULE_EAGER_LOADING, as nothing is put off here. */
CUresult sim_cuModuleGetLoadingMode(int *mode)
{
	*mode = 1;
	return CUDA_SUCCESS;
}

/* With m->lock held. */
static CUresult make_function(struct cu_module *m, const char *name, struct cu_function **out)
{
	static const int attributes[SIM_FUNCTION_ATTRIBUTES] = SIM_FUNCTION_DEFAULTS;
	struct cu_function *f = calloc(1, sizeof(*f));
	CUresult rc;

	if (f)
		f->name = strdup(name);
	if (!f || !f->name) {
		free(f);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	f->module = m;
	memcpy(f->attributes, attributes, sizeof(attributes));
	rc = duration_of(f);
	if (rc != CUDA_SUCCESS) {
		free(f->name);
		free(f);
		return rc;
	}
	f->next = m->functions;
	m->functions = f;
	*out = f;
	return CUDA_SUCCESS;
}

/* The same name is the same handle. */
CUresult sim_cuModuleGetFunction(CUfunction *out, struct cu_module *m, const char *name)
{
	CUresult rc = CUDA_SUCCESS;
	struct cu_function *f;

	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!name || !out)
		return CUDA_ERROR_INVALID_VALUE;
	if (m->image && !image_has_kernel(m->image, name))
		return CUDA_ERROR_NOT_FOUND;
	pthread_mutex_lock(&m->lock);
	for (f = m->functions; f && strcmp(f->name, name); f = f->next)
		;
	if (!f)
		rc = make_function(m, name, &f);
	pthread_mutex_unlock(&m->lock);
	if (rc == CUDA_SUCCESS)
		*out = f;
	return rc;
}

CUresult sim_cuModuleGetFunctionCount(unsigned int *count, struct cu_module *m)
{
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	for (*count = 0; m->image && image_kernel(m->image, *count); ++*count)
		;
	return CUDA_SUCCESS;
}

CUresult sim_cuModuleEnumerateFunctions(CUfunction *out, unsigned int count, struct cu_module *m)
{
	CUresult rc = m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;

	for (unsigned int i = 0; i < count && rc == CUDA_SUCCESS; i++) {
		const char *name = m->image ? image_kernel(m->image, i) : NULL;

		if (!name)
			break;
		rc = sim_cuModuleGetFunction(&out[i], m, name);
	}
	return rc;
}

/* With m->lock held. Of the context that asks first: there is one per process and GPU in what this serves. */
static CUresult make_global(struct cu_module *m, const char *name, uint64_t bytes, struct cu_global **out)
{
	struct cu_global *g = calloc(1, sizeof(*g));
	CUresult rc = CUDA_ERROR_OUT_OF_MEMORY;

	if (g)
		g->name = strdup(name);
	if (g && g->name)
		rc = memory_alloc(&g->address, bytes, MEMORY_DEVICE, NULL);
	if (rc != CUDA_SUCCESS) {
		if (g)
			free(g->name);
		free(g);
		return rc;
	}
	g->bytes = bytes;
	g->next = m->globals;
	m->globals = g;
	*out = g;
	return CUDA_SUCCESS;
}

/* Zeroes, whatever the image's initialiser says: no kernel reads it. */
CUresult sim_cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *bytes, struct cu_module *m, const char *name)
{
	CUresult rc = CUDA_SUCCESS;
	struct cu_global *g;
	uint64_t size;

	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!name || !m->image || !image_global(m->image, name, &size))
		return CUDA_ERROR_NOT_FOUND;
	pthread_mutex_lock(&m->lock);
	for (g = m->globals; g && strcmp(g->name, name); g = g->next)
		;
	if (!g)
		rc = make_global(m, name, size, &g);
	pthread_mutex_unlock(&m->lock);
	if (rc != CUDA_SUCCESS)
		return rc;
	if (out)
		*out = g->address;
	if (bytes)
		*bytes = g->bytes;
	return CUDA_SUCCESS;
}

CUresult sim_cuLibraryLoadData(struct cu_module **out, const void *code, const int *jit, void **jit_values,
			       unsigned int jit_count, const int *options, void **values, unsigned int count)
{
	(void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
	return open_module(out, code);
}

CUresult sim_cuLibraryLoadFromFile(struct cu_module **out, const char *path, const int *jit,
				   void **jit_values, unsigned int jit_count, const int *options,
				   void **values, unsigned int count)
{
	(void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
	return open_file(out, path);
}

CUresult sim_cuLibraryUnload(struct cu_module *m)
{
	return close_module(m);
}

CUresult sim_cuLibraryGetModule(struct cu_module **out, struct cu_module *m)
{
	if (!m)
		return CUDA_ERROR_INVALID_HANDLE;
	*out = m;
	return CUDA_SUCCESS;
}
