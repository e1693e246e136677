// SPDX-License-Identifier: Apache-2.0
/* cuGetProcAddress: how the runtime finds the driver. It only ever returns exported addresses. */
#include <stdio.h>
#include <string.h>

#include "cuda_exports.h"
#include "cuda_api.h"

#define DECLARE(name, impl) extern char export_##name[] __asm__(#name);
CUDA_EXPORTS(DECLARE)
CUDA_PLAIN_EXPORTS(DECLARE)

#define ROW(name, impl) {#name, export_##name},
static const struct {
	const char *name;
	void *address;
} table[] = {CUDA_EXPORTS(ROW) CUDA_PLAIN_EXPORTS(ROW)};

#define PER_THREAD_DEFAULT_STREAM 2

enum {
	FOUND = 0,
	NOT_FOUND = 1
};

/* Which CUDA version the newer spellings came with, where it is not that of every _v2 (3.2). */
static const struct {
	const char *name;
	const char *newest;
	int since;
} versions[] = {
	{"cuCtxCreate", "cuCtxCreate_v4", 12050},
	{"cuCtxCreate", "cuCtxCreate_v3", 11040},
	{"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11040},
	{"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
	{"cuGraphAddKernelNode", "cuGraphAddKernelNode_v2", 12000},
	{"cuGraphInstantiate", "cuGraphInstantiate_v2", 11000},
	{"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010},
	{"cuEventElapsedTime", "cuEventElapsedTime_v2", 12080},
	{"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v3", 12030},
	{"cuStreamGetCaptureInfo", "cuStreamGetCaptureInfo_v2", 11030},
	{"cuMemAdvise", "cuMemAdvise_v2", 12020},
	{"cuMemPrefetchAsync", "cuMemPrefetchAsync_v2", 12020},
	{"cuStreamWaitValue32", "cuStreamWaitValue32_v2", 11070},
	{"cuStreamWriteValue32", "cuStreamWriteValue32_v2", 11070},
	{"cuStreamBatchMemOp", "cuStreamBatchMemOp_v2", 11070},
	{"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000},
	{"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000},
	{"cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2", 11000},
};

static void *find(const char *name, const char *suffix)
{
	char full[128];

	snprintf(full, sizeof(full), "%s%s", name, suffix);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (!strcmp(table[i].name, full))
			return table[i].address;
	return NULL;
}

static void *find_spelling(const char *name, bool per_thread)
{
	void *address = per_thread ? find(name, "_ptsz") : NULL;

	if (!address && per_thread)
		address = find(name, "_ptds");
	return address ? address : find(name, "");
}

static void *resolve(const char *symbol, int version, bool per_thread)
{
	char v2[128];
	bool has_row = false;
	void *address = NULL;

	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
		if (strcmp(versions[i].name, symbol))
			continue;
		has_row = true;
		if (version >= versions[i].since)
			return find_spelling(versions[i].newest, per_thread);
	}
	snprintf(v2, sizeof(v2), "%s_v2", symbol);
	if (!strcmp(symbol, "cuCtxCreate") || (!has_row && version >= 3020))
		address = find_spelling(v2, per_thread);
	return address ? address : find_spelling(symbol, per_thread);
}

CUresult sim_cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *status)
{
	if (!symbol || !out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = resolve(symbol, version, flags & PER_THREAD_DEFAULT_STREAM);
	if (status)
		*status = *out ? FOUND : NOT_FOUND;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult sim_cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags)
{
	return sim_cuGetProcAddress_v2(symbol, out, version, flags, NULL);
}
