// SPDX-License-Identifier: Apache-2.0
/*
 * CUdevice_attribute as an H100 SXM5 answers, by number; what GpuSpec says comes from there. Of what the stand-in
 * does not have (IPC, virtual memory management, multicast) the answer is no: a program that asks goes without.
 * From what is published of the chip and its driver; limits of textures, and 108 and 109, were read from no device.
 */
#include "cuda_api.h"

enum {
	ATTR_SM_COUNT = 16,
	ATTR_PCI_BUS = 33,
	ATTR_CC_MAJOR = 75,
	ATTR_CC_MINOR = 76
};

/* Laid out by hand: the formatter makes one pair per line of it. Not named: 0. */
/* clang-format off */
static const int constants[] = {
	/* threads per block, block dimensions, grid dimensions */
	[1] = 1024, [2] = 1024, [3] = 1024, [4] = 64, [5] = 0x7fffffff, [6] = 65535, [7] = 65535,
	/* shared memory per block, constant memory, warp, pitch, registers per block, kHz */
	[8] = 49152, [9] = 65536, [10] = 32, [11] = 0x7fffffff, [12] = 65536, [13] = 1980000,
	/* texture alignment, overlap of copies, mapped host memory */
	[14] = 512, [15] = 1, [19] = 1,
	/* 1-D, 2-D, 3-D and layered textures */
	[21] = 131072, [22] = 131072, [23] = 65536, [24] = 16384, [25] = 16384, [26] = 16384,
	[27] = 32768, [28] = 32768, [29] = 2048,
	/* surface alignment, concurrent kernels, ECC, memory clock in kHz and bus width, L2, threads per SM */
	[30] = 512, [31] = 1, [32] = 1, [36] = 2619000, [37] = 5120, [38] = 52428800, [39] = 2048,
	/* copy engines, one address space */
	[40] = 3, [41] = 1, [42] = 32768, [43] = 2048, [45] = 32768, [46] = 32768,
	[47] = 8192, [48] = 8192, [49] = 32768, [51] = 32, [52] = 32768, [53] = 32768, [54] = 2046,
	/* surfaces */
	[55] = 32768, [56] = 131072, [57] = 65536, [58] = 16384, [59] = 16384, [60] = 16384, [61] = 32768,
	[62] = 2048, [63] = 32768, [64] = 32768, [65] = 2048, [66] = 32768, [67] = 32768, [68] = 2046,
	/* linear and mipmapped textures */
	[69] = 268435456, [70] = 131072, [71] = 65000, [72] = 2097120, [73] = 32768, [74] = 32768, [77] = 32768,
	/* stream priorities, L1 for globals and locals, shared memory and registers per SM, managed memory */
	[78] = 1, [79] = 1, [80] = 1, [81] = 233472, [82] = 65536, [83] = 1,
	/* single to double precision, concurrent access to managed memory, preemption, registered pointers */
	[87] = 2, [89] = 1, [90] = 1, [91] = 1,
	/* stream memory operations of version 1, and those that test for NOR */
	[92] = 1, [94] = 1, [123] = 1,
	/* cooperative launches, shared memory a block may opt in to, host registration, blocks per SM */
	[95] = 1, [97] = 232448, [99] = 1, [106] = 32,
	/* persisting L2 and its window, shared memory the system keeps of each block, memory pools */
	[108] = 32768000, [109] = 134213632, [111] = 1024, [115] = 1,
	/* clusters, memory domains, tensor maps, unified function pointers, no NUMA node of its own */
	[120] = 1, [126] = 4, [127] = 1, [129] = 1, [131] = -1,
};
/* clang-format on */

#define LAST_ATTRIBUTE 146 /* of CUDA 12.9 */

CUresult sim_cuDeviceGetAttribute(int *value, int attribute, CUdevice dev)
{
	const struct sim_spec *spec;

	if (!client.is_ready || dev < 0 || dev >= client.device_count)
		return client.is_ready ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NOT_INITIALIZED;
	if (!value || attribute < 1 || attribute > LAST_ATTRIBUTE)
		return CUDA_ERROR_INVALID_VALUE;
	spec = &client.devices[dev].shm->spec;
	*value = (size_t)attribute < sizeof(constants) / sizeof(constants[0]) ? constants[attribute] : 0;
	if (attribute == ATTR_SM_COUNT)
		*value = (int)spec->sm_count;
	else if (attribute == ATTR_PCI_BUS)
		*value = (int)spec->pci_bus;
	else if (attribute == ATTR_CC_MAJOR)
		*value = (int)spec->cc_major;
	else if (attribute == ATTR_CC_MINOR)
		*value = (int)spec->cc_minor;
	return CUDA_SUCCESS;
}
