# SPDX-License-Identifier: Apache-2.0
"""A process that uses the simulated libcuda as it is told, one line of Python at a time on standard input."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

GRANULE = 512


class Cuda:
    """The calls of the driver API that the tests need. Results other than success are RuntimeErrors."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        self.memory: list[int] = []
        self.contexts: list[ctypes.c_void_p] = []

    def __call__(self, name: str, *args: object) -> None:
        status = getattr(self.library, name)(*args)
        if status:
            raise RuntimeError(f"{name}: {status}")

    def open(self, gpu: int = 0) -> None:
        context = ctypes.c_void_p()
        self("cuCtxCreate_v2", ctypes.byref(context), 0, gpu)
        self.contexts.append(context)

    def close(self) -> None:
        self("cuCtxDestroy_v2", self.contexts.pop())

    def alloc(self, size: int) -> int:
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.memory.append(address.value)
        return address.value

    def free(self, address: int) -> None:
        self("cuMemFree_v2", ctypes.c_uint64(address))

    def fails(self, size: int) -> str:
        try:
            self.alloc(size)
        except RuntimeError as error:
            return str(error)
        return ""

    def churn(self, threads: int, times: int) -> None:
        """Each thread allocates and frees, and keeps its last allocation."""
        barrier = threading.Barrier(threads)

        def work(number: int) -> None:
            self("cuCtxSetCurrent", self.contexts[-1])
            barrier.wait()
            for turn in range(times):
                address = self.alloc(GRANULE * (number + turn + 1))
                if turn < times - 1:
                    self.free(address)

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))


def main() -> None:
    names = {"os": os, "sys": sys, "threading": threading, "Cuda": Cuda, "ctypes": ctypes}
    for line in sys.stdin:
        try:
            value = eval(line, names) if not line.startswith("!") else exec(line[1:], names)
            print(f"ok {value}", flush=True)
        except Exception as error:
            print(f"error {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
