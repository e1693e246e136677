/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table cuGetExportTable hands out for SIM_TABLE_ID: the code behind the exports, for programs whose calls
 * no probe on an export sees, as those of one that carries the driver's client code in itself. The real
 * library has such tables too, with other ids and undocumented layouts.
 */
#ifndef SIMTABLE_H
#define SIMTABLE_H

#include <stddef.h>

#define SIM_TABLE_ID                                                                                      \
	{                                                                                                 \
		0x9d, 0x41, 0x0e, 0x6c, 0x52, 0xb7, 0x4f, 0x03, 0x8a, 0x1f, 0x77, 0xe0, 0x2b, 0xc4, 0x95, \
			0x38                                                                              \
	}

/* X(what simload calls it, the name cuGetProcAddress knows, the implementation after the prefix sim_). */
/* clang-format off */
#define SIM_TABLE(X) \
  X(init, cuInit, cuInit)                                                     \
  X(device_get, cuDeviceGet, cuDeviceGet)                                     \
  X(device_uuid, cuDeviceGetUuid, cuDeviceGetUuid_v2)                         \
  X(primary_retain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)       \
  X(ctx_create, cuCtxCreate, cuCtxCreate_v2)                                  \
  X(ctx_set, cuCtxSetCurrent, cuCtxSetCurrent)                                \
  X(stream_create, cuStreamCreate, cuStreamCreate)                            \
  X(stream_sync, cuStreamSynchronize, cuStreamSynchronize)                    \
  X(stream_write32, cuStreamWriteValue32, cuStreamWriteValue32)               \
  X(stream_wait_event, cuStreamWaitEvent, cuStreamWaitEvent)                  \
  X(event_create, cuEventCreate, cuEventCreate)                               \
  X(event_record, cuEventRecord, cuEventRecord)                               \
  X(event_sync, cuEventSynchronize, cuEventSynchronize)                       \
  X(event_query, cuEventQuery, cuEventQuery)                                  \
  X(module_load, cuModuleLoadData, cuModuleLoadData)                          \
  X(module_function, cuModuleGetFunction, cuModuleGetFunction)                \
  X(launch, cuLaunchKernel, cuLaunchKernel)                                   \
  X(graph_create, cuGraphCreate, cuGraphCreate)                               \
  X(graph_add, cuGraphAddKernelNode, cuGraphAddKernelNode)                    \
  X(graph_instantiate, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) \
  X(graph_launch, cuGraphLaunch, cuGraphLaunch)                               \
  X(mem_alloc, cuMemAlloc, cuMemAlloc_v2)                                     \
  X(host_alloc, cuMemHostAlloc, cuMemHostAlloc)                               \
  X(copy_to_device, cuMemcpyHtoDAsync, cuMemcpyHtoDAsync)
/* clang-format on */

#define SIM_TABLE_COUNT(field, name, impl) +1

struct sim_table {
	size_t bytes; /* of the whole table: its version, as in the real ones */
	void *entries[0 SIM_TABLE(SIM_TABLE_COUNT)];
};

#endif
