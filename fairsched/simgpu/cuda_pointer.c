// SPDX-License-Identifier: Apache-2.0
/* What an address is. */
#include <string.h>

#include "cuda_api.h"

enum { /* CUpointer_attribute */
	IS_CONTEXT = 1,
	IS_MEMORY_TYPE = 2,
	IS_DEVICE_POINTER = 3,
	IS_HOST_POINTER = 4,
	IS_SYNC_MEMOPS = 6,
	IS_BUFFER_ID = 7,
	IS_MANAGED = 8,
	IS_DEVICE_ORDINAL = 9,
	IS_IPC_CAPABLE = 10,
	IS_RANGE_START = 11,
	IS_RANGE_SIZE = 12,
	IS_MAPPED = 13,
	IS_HANDLE_TYPES = 14,
	IS_RDMA_CAPABLE = 15,
	IS_ACCESS_FLAGS = 16,
	IS_POOL = 17
};

enum { /* CUmemorytype, and full access */
	TYPE_HOST = 1,
	TYPE_DEVICE = 2,
	READ_WRITE = 3
};

static CUresult put(void *out, uint64_t value, size_t bytes)
{
	memcpy(out, &value, bytes); /* little-endian */
	return CUDA_SUCCESS;
}

static CUresult describe(void *out, int attribute, CUdeviceptr address, const struct cu_memory *m,
			 CUcontext c)
{
	bool on_host = m->kind == MEMORY_HOST || m->kind == MEMORY_REGISTERED;

	switch (attribute) {
	case IS_CONTEXT:
		return put(out, (uintptr_t)c, sizeof(c));
	case IS_MEMORY_TYPE:
		return put(out, on_host ? TYPE_HOST : TYPE_DEVICE, sizeof(uint32_t));
	case IS_DEVICE_POINTER:
		return put(out, address, sizeof(address));
	case IS_HOST_POINTER: /* of device memory there is none, although its bytes can be read here */
		if (m->kind == MEMORY_DEVICE)
			return CUDA_ERROR_INVALID_VALUE;
		return put(out, address, sizeof(address));
	case IS_BUFFER_ID:
		return put(out, m->id, sizeof(m->id));
	case IS_MANAGED:
		return put(out, m->kind == MEMORY_MANAGED, 1);
	case IS_DEVICE_ORDINAL:
		return put(out, (uint32_t)c->device, sizeof(uint32_t));
	case IS_RANGE_START:
		return put(out, m->address, sizeof(m->address));
	case IS_RANGE_SIZE:
		return put(out, m->bytes, sizeof(m->bytes));
	case IS_MAPPED:
		return put(out, 1, 1);
	case IS_SYNC_MEMOPS:
	case IS_IPC_CAPABLE:
	case IS_RDMA_CAPABLE:
		return put(out, 0, 1);
	case IS_HANDLE_TYPES:
		return put(out, 0, sizeof(uint32_t));
	case IS_ACCESS_FLAGS:
		return put(out, READ_WRITE, sizeof(uint32_t));
	case IS_POOL:
		return put(out, (uintptr_t)m->pool, sizeof(m->pool));
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult sim_cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address)
{
	struct cu_memory m;
	CUcontext c;

	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!out || !memory_find(address, &m, &c))
		return CUDA_ERROR_INVALID_VALUE;
	return describe(out, attribute, address, &m, c);
}

/* Of an address that is nobody's all is zero: this is how programs ask whether one is host memory. */
static size_t bytes_of(int attribute)
{
	if (attribute == IS_SYNC_MEMOPS || attribute == IS_MANAGED || attribute == IS_IPC_CAPABLE ||
	    attribute == IS_MAPPED || attribute == IS_RDMA_CAPABLE)
		return 1;
	if (attribute == IS_MEMORY_TYPE || attribute == IS_DEVICE_ORDINAL || attribute == IS_HANDLE_TYPES ||
	    attribute == IS_ACCESS_FLAGS)
		return sizeof(uint32_t);
	return sizeof(uint64_t);
}

CUresult sim_cuPointerGetAttributes(unsigned int count, const int *attributes, void **out,
				    CUdeviceptr address)
{
	struct cu_memory m;
	CUcontext c;
	bool found;

	if (!client.is_ready)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!attributes || !out)
		return CUDA_ERROR_INVALID_VALUE;
	found = memory_find(address, &m, &c);
	for (unsigned int i = 0; i < count; i++)
		if (!found || describe(out[i], attributes[i], address, &m, c) != CUDA_SUCCESS)
			put(out[i], attributes[i] == IS_DEVICE_ORDINAL ? UINT64_MAX - 1 : 0,
			    bytes_of(attributes[i]));
	return CUDA_SUCCESS;
}

/* SYNC_MEMOPS is the only one there is: copies that return when they are done do so here anyway. */
CUresult sim_cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
	struct cu_memory m;

	if (!value || attribute != IS_SYNC_MEMOPS || !memory_find(address, &m, NULL))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
	struct cu_memory m;

	if (!memory_find(address, &m, NULL))
		return CUDA_ERROR_NOT_FOUND;
	if (base)
		*base = m.address;
	if (bytes)
		*bytes = m.bytes;
	return CUDA_SUCCESS;
}

/* Advice about managed memory, which lies where it lies. */
CUresult sim_cuMemAdvise(CUdeviceptr address, size_t bytes, int advice, CUdevice dev)
{
	struct cu_memory m;

	(void)bytes, (void)advice, (void)dev;
	if (!memory_find(address, &m, NULL) || m.kind != MEMORY_MANAGED)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_cuMemAdvise_v2(CUdeviceptr address, size_t bytes, int advice, uint64_t location)
{
	(void)location; /* a CUmemLocation, by value */
	return sim_cuMemAdvise(address, bytes, advice, 0);
}
