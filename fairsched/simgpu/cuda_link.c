// SPDX-License-Identifier: Apache-2.0
/*
 * The driver's linker, as far as it goes without one: what is linked is the image that was added first, which names
 * the kernels. Programs that link several images bring a linker of their own (nvJitLink).
 */
#include <stdlib.h>
#include <string.h>

#include "cuda_api.h"

struct cu_link {
	char *image;
	size_t bytes;
};

CUresult sim_cuLinkCreate_v2(unsigned int count, const int *options, void **values, struct cu_link **out)
{
	CUcontext c;
	CUresult rc = need_context(&c);

	(void)count, (void)options, (void)values;
	if (rc != CUDA_SUCCESS)
		return rc;
	*out = calloc(1, sizeof(**out));
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuLinkAddData_v2(struct cu_link *link, int type, const void *data, size_t bytes,
			      const char *name, unsigned int count, const int *options, void **values)
{
	(void)type, (void)name, (void)count, (void)options, (void)values;
	if (!link)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!data || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (link->image)
		return CUDA_SUCCESS;
	link->image = calloc(1, bytes + 1); /* PTX may come without its last byte, a zero */
	if (!link->image)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(link->image, data, bytes);
	link->bytes = bytes;
	return CUDA_SUCCESS;
}

CUresult sim_cuLinkAddFile_v2(struct cu_link *link, int type, const char *path, unsigned int count,
			      const int *options, void **values)
{
	size_t bytes = 0;
	char *data = path ? image_file(path, &bytes) : NULL;
	CUresult rc = CUDA_ERROR_FILE_NOT_FOUND;

	if (data)
		rc = sim_cuLinkAddData_v2(link, type, data, bytes, path, count, options, values);
	free(data);
	return rc;
}

CUresult sim_cuLinkComplete(struct cu_link *link, void **image, size_t *bytes)
{
	if (!link || !link->image)
		return CUDA_ERROR_INVALID_HANDLE;
	*image = link->image;
	if (bytes)
		*bytes = link->bytes;
	return CUDA_SUCCESS;
}

CUresult sim_cuLinkDestroy(struct cu_link *link)
{
	if (!link)
		return CUDA_ERROR_INVALID_HANDLE;
	free(link->image);
	free(link);
	return CUDA_SUCCESS;
}
