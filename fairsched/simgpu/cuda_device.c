// SPDX-License-Identifier: Apache-2.0
/* Initialisation, devices, error names. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cuda_api.h"

#define DRIVER_VERSION 12040

CUresult need_init(void)
{
	return client.is_ready ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static struct sim_device *device(CUdevice dev)
{
	if (!client.is_ready || dev < 0 || dev >= client.device_count)
		return NULL;
	return &client.devices[dev];
}

static CUresult no_device(void)
{
	return client.is_ready ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult sim_cuInit(unsigned int flags)
{
	CUresult rc;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	rc = client_init();
	if (rc == CUDA_SUCCESS)
		sim_gate = 0;
	return rc;
}

CUresult sim_cuDriverGetVersion(int *version)
{
	*version = DRIVER_VERSION;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetCount(int *count)
{
	*count = client.device_count;
	return need_init();
}

CUresult sim_cuDeviceGet(CUdevice *out, int ordinal)
{
	if (!device(ordinal))
		return no_device();
	*out = ordinal;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetName(char *name, int len, CUdevice dev)
{
	if (!device(dev))
		return no_device();
	snprintf(name, (size_t)len, "%s", device(dev)->shm->spec.name);
	return CUDA_SUCCESS;
}

/* The older one tells the GPU that a MIG instance is of, the newer one the instance. */
CUresult sim_cuDeviceGetUuid(void *uuid, CUdevice dev)
{
	struct sim_spec whole;

	if (!device(dev))
		return no_device();
	if (!whole_spec(device(dev)->gpu, &whole))
		return CUDA_ERROR_DEINITIALIZED;
	memcpy(uuid, whole.uuid_bytes, 16);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetUuid_v2(void *uuid, CUdevice dev)
{
	if (!device(dev))
		return no_device();
	memcpy(uuid, device(dev)->shm->spec.uuid_bytes, 16);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	if (!device(dev))
		return no_device();
	*bytes = device(dev)->shm->spec.vram_bytes;
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetPCIBusId(char *text, int len, CUdevice dev)
{
	if (!device(dev))
		return no_device();
	snprintf(text, (size_t)len, "0000:%02X:00.0", device(dev)->shm->spec.pci_bus);
	return CUDA_SUCCESS;
}

CUresult sim_cuDeviceGetByPCIBusId(CUdevice *out, const char *text)
{
	char own[16];

	for (CUdevice dev = 0; text && device(dev); dev++) {
		sim_cuDeviceGetPCIBusId(own, sizeof(own), dev);
		if (strcasecmp(own, text) && strcasecmp(own + 5, text)) /* with the domain or without */
			continue;
		*out = dev;
		return CUDA_SUCCESS;
	}
	return client.is_ready ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult sim_cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	if (!device(dev))
		return no_device();
	*major = (int)device(dev)->shm->spec.cc_major;
	*minor = (int)device(dev)->shm->spec.cc_minor;
	return CUDA_SUCCESS;
}

/* Locally unique ids are Windows'. */
CUresult sim_cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice dev)
{
	(void)luid, (void)mask;
	return device(dev) ? CUDA_ERROR_NOT_SUPPORTED : no_device();
}

static const struct {
	CUresult code;
	const char *name;
	const char *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
	 "peer access is not supported between these two devices"},
	{CUDA_ERROR_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
	 "peer access has not been enabled"},
	{CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
	 "part or all of the requested memory range is already mapped"},
	{CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
	 "pointer does not correspond to a registered memory region"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(CUresult code, const char **out, bool want_name)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
		if (errors[i].code != code)
			continue;
		*out = want_name ? errors[i].name : errors[i].text;
		return CUDA_SUCCESS;
	}
	*out = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGetErrorName(CUresult code, const char **out)
{
	return describe(code, out, true);
}

CUresult sim_cuGetErrorString(CUresult code, const char **out)
{
	return describe(code, out, false);
}
