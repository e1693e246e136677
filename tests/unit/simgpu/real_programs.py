# SPDX-License-Identifier: Apache-2.0
"""Programs as their users write them: ``python real_programs.py NAME``. Each prints one JSON object in the end.

They run in the Python that has numba-cuda, and import nothing of this project.
"""

from __future__ import annotations

import json
import sys


def numba_cuda() -> None:
    """Arrays to the device and back, streams, events, shared memory, all kinds of memory."""
    import numpy as np
    from numba import cuda, float32

    @cuda.jit
    def half(values):
        part = cuda.shared.array(32, float32)
        i = cuda.grid(1)
        part[cuda.threadIdx.x] = values[i]
        cuda.syncthreads()
        values[i] = part[31 - cuda.threadIdx.x] / 2

    host = np.arange(64, dtype=np.float32).reshape(8, 8)
    device = cuda.to_device(host)
    start, end, stream = cuda.event(), cuda.event(), cuda.stream()
    start.record(stream)
    half[2, 32, stream](device.reshape(64))
    end.record(stream)
    end.synchronize()
    pinned, managed = cuda.pinned_array(8, np.float32), cuda.managed_array(8, np.float32)
    pinned[:], managed[:] = 3, 4
    print(
        json.dumps(
            {
                "capability": cuda.get_current_device().compute_capability,
                "back": bool((device.copy_to_host() == host).all()),
                "column": device[:, 1].copy_to_host().tolist(),
                "ms": cuda.event_elapsed_time(start, end),
                "pinned": float(cuda.to_device(pinned).copy_to_host().sum()),
                "managed": float(managed.sum()),
                "threads": next(iter(half.get_max_threads_per_block().values())),
            }
        )
    )


def cuda_core() -> None:
    """A program compiled by NVRTC, launched by itself and out of a graph; what linking two of them makes."""
    from cuda.core import Device, LaunchConfig, Linker, LinkerOptions, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    arch = f"sm_{device.arch}"
    source = 'extern "C" __global__ void scale(float *a, int n) { if (threadIdx.x < n) a[threadIdx.x] *= 2; }'
    kernels = [
        Program(source, "c++", ProgramOptions(arch=arch)).compile(kind).get_kernel("scale")
        for kind in ("cubin", "ptx")
    ]
    stream = device.create_stream()
    buffer = device.allocate(4096, stream=stream)
    shape = LaunchConfig(grid=1, block=128)
    for kernel in kernels:
        launch(stream, shape, kernel, buffer, 128)
    builder = device.create_graph_builder()
    builder.begin_building()
    for _ in range(3):
        launch(builder, shape, kernels[0], buffer, 128)
    graph = builder.end_building().complete()
    graph.launch(stream)
    stream.sync()
    options = ProgramOptions(arch=arch, relocatable_device_code=True)
    parts = [
        Program(text, "c++", options).compile("ptx")
        for text in (
            'extern "C" __device__ int more(int x) { return x + 1; }',
            'extern "C" __device__ int more(int); extern "C" __global__ void add(int *p) { *p = more(*p); }',
        )
    ]
    linked = Linker(*parts, options=LinkerOptions(arch=arch)).link("cubin").get_kernel("add")
    launch(stream, LaunchConfig(grid=1, block=1), linked, buffer)
    stream.sync()
    missing = 0
    for name in [name for name in dir(device.properties) if not name.startswith("_")]:
        missing += getattr(device.properties, name) is None
    print(json.dumps({"capability": device.compute_capability, "missing": missing}))


def cuda_bindings() -> None:
    """The driver API by its own names."""
    from cuda.bindings import driver

    def call(function, *args):
        rc, *out = function(*args)
        assert rc == driver.CUresult.CUDA_SUCCESS, (function, rc)
        return out[0] if len(out) == 1 else out

    call(driver.cuInit, 0)
    context = call(driver.cuDevicePrimaryCtxRetain, call(driver.cuDeviceGet, 0))
    call(driver.cuCtxSetCurrent, context)
    address = call(driver.cuMemAlloc, 64)
    call(driver.cuMemcpyHtoD, address, b"0123456789abcdef" * 4, 64)
    call(driver.cuMemsetD8, address, ord("x"), 4)
    into = bytearray(64)
    call(driver.cuMemcpyDtoH, into, address, 64)
    base, size = call(driver.cuMemGetAddressRange, int(address) + 10)
    print(json.dumps({"text": into[:8].decode(), "range": [int(base) == int(address), size]}))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
