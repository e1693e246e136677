// SPDX-License-Identifier: Apache-2.0
/* Initialisation, devices, error names. */
#include <stdio.h>
#include <string.h>

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

CUresult sim_cuDeviceGetUuid(void *uuid, CUdevice dev)
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

CUresult sim_cuDeviceGetAttribute(int *value, int attribute, CUdevice dev)
{
  const struct sim_spec *spec;

  if (!device(dev))
    return no_device();
  spec = &device(dev)->shm->spec;
  switch (attribute) {
  case 1: /* MAX_THREADS_PER_BLOCK, and of each dimension but z */
  case 2:
  case 3:
    *value = 1024;
    break;
  case 4:
    *value = 64;
    break;
  case 5: /* MAX_GRID_DIM_X */
    *value = 0x7fffffff;
    break;
  case 6:
  case 7:
    *value = 65535;
    break;
  case 8: /* MAX_SHARED_MEMORY_PER_BLOCK */
    *value = 49152;
    break;
  case 10: /* WARP_SIZE */
    *value = 32;
    break;
  case 12: /* MAX_REGISTERS_PER_BLOCK */
    *value = 65536;
    break;
  case 13: /* CLOCK_RATE, kHz */
    *value = 1700000;
    break;
  case 16: /* MULTIPROCESSOR_COUNT */
    *value = (int)spec->sm_count;
    break;
  case 33: /* PCI_BUS_ID; device (34), domain (50) and mode values (17, 18, 20) are 0 */
    *value = (int)spec->pci_bus;
    break;
  case 17:
  case 18:
  case 20:
  case 34:
  case 50:
    *value = 0;
    break;
  case 75: /* COMPUTE_CAPABILITY */
    *value = (int)spec->cc_major;
    break;
  case 76:
    *value = (int)spec->cc_minor;
    break;
  default:
    *value = 1;
  }
  return CUDA_SUCCESS;
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
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
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
