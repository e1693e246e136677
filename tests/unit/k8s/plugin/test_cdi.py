# SPDX-License-Identifier: Apache-2.0
"""What a runtime is told a GPU is: by us, and by nvidia-ctk where it does what it should."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fairsched.gpu.nvml import Mig
from fairsched.k8s.plugin.cdi import CONTROL, Places, Specification, device_name, qualified
from tests.unit.k8s.plugin.kubelet import A, B, offer

REAL_TOOL = Path(os.environ.get("FAIRSCHED_K8S_CACHE", "/var/cache/fairsched-k8s")) / "bin/nvidia-ctk"


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Device nodes need root to be made: here a link to one that is there is one."""
    found = Places(cdi=tmp_path / "cdi", dev=tmp_path / "dev", proc=tmp_path / "proc")
    (found.dev / "nvidia-caps").mkdir(parents=True)
    for name in (*CONTROL, "nvidia0", "nvidia1"):
        (found.dev / name).symlink_to("/dev/null")
    return found


def spec_of(places: Places) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((places.cdi / "fairsched.io-gpu.json").read_text())
    return found


def nodes(spec: dict[str, Any], uuid: str) -> list[str]:
    (device,) = [one for one in spec["devices"] if one["name"] == uuid]
    return [one["path"] for one in device["containerEdits"]["deviceNodes"]]


def test_a_gpu_is_its_node_and_those_that_all_need(places: Places) -> None:
    assert Specification(places).write([offer(A), offer(B, minor=1)]) == {}
    spec = spec_of(places)
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", "fairsched.io/gpu")
    assert nodes(spec, A) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"]
    assert nodes(spec, B)[-1] == "/dev/nvidia1"
    node = spec["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert node["hostPath"] == str(places.dev / "nvidiactl")
    assert stat.S_IMODE((places.cdi / "fairsched.io-gpu.json").stat().st_mode) == 0o644


def test_an_instance_has_the_nodes_of_its_capabilities(places: Places) -> None:
    top = places.proc / "driver/nvidia/capabilities/gpu1/mig/gi3"
    for directory, number in ((top, 30), (top / "ci0", 31)):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "access").write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\n")
        (places.dev / f"nvidia-caps/nvidia-cap{number}").symlink_to("/dev/null")
    one = offer("MIG-1", minor=1, mig=Mig(B, 3, 0))
    assert Specification(places).write([one]) == {}
    assert nodes(spec_of(places), "MIG-1")[2:] == [
        "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"
    ]  # fmt: skip
    missing = Specification(places).write([offer("MIG-2", minor=1, mig=Mig(B, 4, 0))])
    assert "gi4/access does not say" in missing["MIG-2"]


def test_a_gpu_without_its_node_is_not_in_it_and_the_others_are(places: Places) -> None:
    (places.dev / "nvidia2").write_text("no device")
    missing = Specification(places).write([offer(A), offer(B, minor=7), offer("GPU-c", minor=2)])
    assert [one["name"] for one in spec_of(places)["devices"]] == [A]
    assert "nvidia7: No such file" in missing[B] and "nvidia2 is no device node" in missing["GPU-c"]


def test_without_what_all_need_no_gpu_is_in_it(places: Places) -> None:
    (places.dev / "nvidia-uvm").unlink()
    missing = Specification(places).write([offer(A)])
    assert "nvidia-uvm" in missing[A] and spec_of(places)["devices"] == []


def test_it_is_written_only_when_it_says_something_else(places: Places) -> None:
    spec = Specification(places)
    spec.write([offer(A)])
    before = spec.path.stat().st_ino
    spec.write([offer(A, trouble="lost")])
    assert spec.path.stat().st_ino == before, "a GPU that is unwell stays in it"
    spec.write([offer(A), offer(B, minor=1)])
    assert spec.path.stat().st_ino != before


def test_a_directory_that_cannot_be_written_gives_out_nothing(places: Places, tmp_path: Path) -> None:
    places.cdi.write_text("no directory")
    assert "cannot be written" in Specification(places).write([offer(A)])[A]


def test_names_are_such_as_cdi_takes() -> None:
    assert device_name("MIG-GPU-1/2/0") == "MIG-GPU-1_2_0"
    assert qualified(A) == "fairsched.io/gpu=GPU-aaaa"


# ---- nvidia-ctk ----


def tool(tmp_path: Path, places: Places, generate: str, listed: str) -> Places:
    """A stand-in: what it does for `cdi generate ... --output FILE` and `cdi list`."""
    program = tmp_path / "nvidia-ctk"
    program.write_text(
        '#!/bin/sh\nif [ "$2" = generate ]; then\nfor out; do :; done\n'
        f"{generate}\nelse\n{listed or ':'}\nfi\n"
    )  # fmt: skip
    program.chmod(0o755)
    return Places(cdi=places.cdi, dev=places.dev, proc=places.proc, tool=str(program))


def test_what_the_tool_writes_is_taken_when_it_lists_it(places: Places, tmp_path: Path) -> None:
    told = tool(tmp_path, places, 'echo \'{"by": "tool"}\' >$out', f"echo {qualified(A)}; echo other")
    spec = Specification(told)
    assert spec.write([offer(A, minor=9)]) == {}, "its nodes are the tool's business"
    assert spec.is_by_tool and spec_of(places) == {"by": "tool"}


@pytest.mark.parametrize(
    ("generate", "listed", "why"),
    [
        ("echo no libcuda >&2; exit 1", "", "exit 1: no libcuda"),
        ("echo {} >$out", "echo fairsched.io/gpu=GPU-other", "is not in what it wrote"),
        (":", f"echo {qualified(A)}", "No such file"),
    ],
)
def test_where_the_tool_fails_we_write_our_own_and_say_so_once(
    places: Places, tmp_path: Path, caplog: pytest.LogCaptureFixture, generate: str, listed: str, why: str
) -> None:
    spec = Specification(tool(tmp_path, places, generate, listed))
    assert spec.write([offer(A)]) == {} and spec.write([offer(A)]) == {}
    assert not spec.is_by_tool and nodes(spec_of(places), A)
    assert len(caplog.records) == 1 and why in caplog.text


def test_a_tool_that_is_not_there_is_none(places: Places) -> None:
    spec = Specification(Places(places.cdi, places.dev, places.proc, tool="/nowhere/nvidia-ctk"))
    assert spec.write([offer(A)]) == {} and not spec.is_by_tool


@pytest.mark.skipif(not REAL_TOOL.exists(), reason="no nvidia-ctk: sudo make setup-k8s")
def test_nvidias_own_program_reads_our_specification(places: Places) -> None:
    Specification(places).write([offer(A), offer("MIG-GPU-1/2/0", minor=1)])
    done = subprocess.run(
        [REAL_TOOL, "cdi", "list", "--spec-dir", str(places.cdi)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [qualified(A), qualified("MIG-GPU-1/2/0")], done.stderr
    shutil.rmtree(places.cdi)
