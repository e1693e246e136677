// SPDX-License-Identifier: Apache-2.0
/* What level 1 of XSched asks its closed library cuXtra, which reads the structures of NVIDIA's driver, answered for the
 * kernels of simload: a handle is itself, and there is one parameter, of eight bytes. Preloaded by peers.py. */
#include <stdbool.h>
#include <stddef.h>

void *cuXtraKernelGetFunction(void *kernel);
size_t cuXtraGetParamCount(void *function);
void cuXtraGetParamInfo(void *function, size_t index, size_t *offset, size_t *size, bool *in_shm);

void *cuXtraKernelGetFunction(void *kernel)
{
	return kernel;
}

size_t cuXtraGetParamCount(void *function)
{
	(void)function;
	return 1;
}

void cuXtraGetParamInfo(void *function, size_t index, size_t *offset, size_t *size, bool *in_shm)
{
	(void)function, (void)index;
	*offset = 0;
	*size = 8;
	if (in_shm)
		*in_shm = false;
}
