# SPDX-License-Identifier: Apache-2.0
"""What is known of the processes on the GPUs while NVML answers for some of them only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.gpu.nvml import Nvml
from fairsched.gpu.processes import Listing

GIB = 1 << 30
ME = os.getpid()


class Lost(Exception):
    """NVMLError."""


class Driver:
    """pynvml: by GPU its processes, or nothing where it does not answer."""

    NVMLError = Lost

    def __init__(self) -> None:
        self.says: dict[int, dict[int, int] | None] = {0: {}, 1: {}}
        self.clients: list[int] | None = None
        """One more of MPS at each answer; None: an old driver."""

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        said = self.says[handle]
        if said is None:
            raise Lost
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in said.items()]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: int) -> list[Any]:
        if self.clients is None or handle:
            raise Lost
        self.clients.append(100 + len(self.clients))
        return [SimpleNamespace(pid=pid, usedGpuMemory=1) for pid in self.clients]


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def nvml(driver: Driver) -> Nvml:
    nvml = Nvml.__new__(Nvml)
    nvml._handles, nvml._nvml = [0, 1], cast(Any, driver)
    return nvml


@pytest.fixture
def listing(nvml: Nvml) -> Iterator[Listing]:
    listing = Listing(nvml, lambda pid: 10, poll_s=1000.0)
    yield listing
    listing.close()


def known(listing: Listing) -> dict[tuple[int, int], int]:
    listing.poll()
    found = listing.take()
    assert found is not None
    return {(one.owner.pid, one.slot): one.vram_bytes for one in found}


def test_a_gpu_that_gives_no_answer_has_not_become_empty(driver: Driver, listing: Listing) -> None:
    """Or whoever is held for its memory there would be let go by the next look."""
    driver.says = {0: {ME: 5 * GIB}, 1: {ME: GIB}}
    everything = {(ME, 0): 5 * GIB, (ME, 1): GIB}
    assert known(listing) == everything
    driver.says = {0: None, 1: {ME: GIB}}
    assert known(listing) == known(listing) == everything
    driver.says = {0: {}, 1: None}
    assert known(listing) == {(ME, 1): GIB}


def test_who_has_ended_meanwhile_is_not_kept(driver: Driver, listing: Listing) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        driver.says = {0: {ME: GIB, other.pid: 3 * GIB}, 1: {}}
        assert known(listing) == {(ME, 0): GIB, (other.pid, 0): 3 * GIB}
        driver.says = {0: None, 1: None}
        assert len(known(listing)) == 2
    assert known(listing) == {(ME, 0): GIB}


def test_by_process_and_gpu_a_silent_gpu_has_nothing(driver: Driver, nvml: Nvml) -> None:
    driver.says = {0: None, 1: {ME: GIB}}
    assert nvml.listed() == {(ME, 1): GIB}
    assert nvml.listed_by_slot() == {1: {ME: GIB}}


def test_a_client_of_mps_that_comes_meanwhile_is_not_listed_as_another_process(
    driver: Driver, nvml: Nvml
) -> None:
    """Or its tenant, which is to be left alone, seems to have other work there."""
    driver.clients = []
    clients = nvml.mps_clients()
    assert clients == {0: {100: 1}}
    assert nvml.listed(clients) == {(100, 0): 1}
    assert nvml.listed() == {(100, 0): 1, (101, 0): 1}
