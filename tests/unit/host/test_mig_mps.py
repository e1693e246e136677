# SPDX-License-Identifier: Apache-2.0
"""What doctor says of GPUs in MIG mode and of clients of MPS."""

from __future__ import annotations

from dataclasses import replace

from fairsched.host.checks import checks
from fairsched.host.choose import choose
from fairsched.host.facts import DcgmFact, GpuFact
from fairsched.model import Source
from tests.unit.host.test_host import capable_host, config


def test_where_every_gpu_is_in_mig_mode_only_ebpf_accounts() -> None:
    split = GpuFact("GPU-5f2c1a90", "NVIDIA A100", has_mig=True)
    host = capable_host(gpus=(split,))
    assert choose(host, config()).source is Source.EBPF
    blind = choose(replace(host, bcc_version=None), config())
    assert blind.source is None and any("no samples of GPUs in MIG mode" in one for one in blind.obstacles)
    mixed = replace(host, bcc_version=None, gpus=(split, GpuFact("GPU-1", "NVIDIA A100")))
    assert choose(mixed, config()).source in (Source.DCGM, Source.NVML)


def test_where_every_gpu_is_in_mig_mode_the_load_of_instances_accounts_too() -> None:
    split = GpuFact("GPU-5f2c1a90", "NVIDIA A100", has_mig=True, instances=(1, 2))
    blind = capable_host(gpus=(split,), bcc_version=None, dcgm=DcgmFact(True, "embedded: GPU 0/1 43 %"))
    assert choose(blind, config()).source is Source.DCGM
    row = next(check for check in checks(blind, config()) if check.name == "dcgm")
    assert row.choice == "scales NVML's samples, and is the account of MIG instances"
    lost = replace(blind, dcgm=DcgmFact(False, "no host engine"))
    assert choose(lost, config()).source is None
    assert choose(replace(blind, driver_version=None), config()).source is None


def test_clients_of_mps_are_said() -> None:
    host = capable_host(gpus=(GpuFact("GPU-5f2c1a90", "NVIDIA L4", None, 3),))
    row = next(check for check in checks(host, config()) if check.name == "mps")
    assert row.level == "warn" and row.fact == "3 clients of MPS on GPU-5f2c1a90" and "not held" in row.choice
    assert all(check.name != "mps" for check in checks(capable_host(), config()))
