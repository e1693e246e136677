# SPDX-License-Identifier: Apache-2.0
"""What bcc makes of abi.h, and where the probes really sit."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairsched.bpf import abi, child
from fairsched.bpf.gpu_time import GpuTimeProbe
from fairsched.simgpu.build import build

# In a process of its own: bcc keeps a compiler of 130 MB in the one that imports it.
LAYOUT = """
import json, os, sys
from fairsched.bpf import compiler, loader
bpf = compiler.compile_module(loader.SOURCE)

def layout(kind):
    if not hasattr(kind, "_fields_"):
        return None
    return {field[0]: (getattr(kind, field[0]).offset, getattr(kind, field[0]).size) for field in kind._fields_}

def sizeof(kind):
    import ctypes
    return ctypes.sizeof(kind)

found = {}
for name in ("ctx_by_slot", "clock_by_gpu", "gpu_time_by_key", "delay_by_key",
             "graphs_by_slot", "gpu_by_dev", "gpu_by_uuid"):
    table = bpf[name]
    for part, kind in (("key", table.Key), ("leaf", table.Leaf)):
        found[f"{name}.{part}"] = [sizeof(kind), layout(kind)]
json.dump(found, sys.stdout)
sys.stdout.flush()
os._exit(0)
"""
SEEN = {
    "ctx_by_slot.leaf": abi.Ctx,
    "clock_by_gpu.leaf": abi.Clock,
    "graphs_by_slot.leaf": abi.Graphs,
    "gpu_time_by_key.key": abi.UseKey,
    "gpu_time_by_key.leaf": abi.Use,
    "delay_by_key.key": abi.DelayKey,
    "delay_by_key.leaf": abi.Delay,
    "gpu_by_dev.key": abi.DevKey,
    "gpu_by_uuid.key": abi.Uuid,
}


@pytest.fixture(scope="module")
def layouts() -> dict[str, tuple[int, dict[str, list[int]] | None]]:
    done = subprocess.run([sys.executable, "-c", LAYOUT], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, dict[str, list[int]] | None]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", SEEN)
def test_bcc_sees_the_layout_of_the_mirror(
    layouts: dict[str, tuple[int, dict[str, list[int]] | None]], name: str
) -> None:
    size, fields = layouts[name]
    mirror = SEEN[name]
    assert size == ctypes.sizeof(mirror)
    assert fields is not None
    expected = {}
    for field in mirror._fields_:
        place = getattr(mirror, field[0])
        expected[field[0]] = [place.offset, place.size]
    assert fields == expected


DRIVER_LAYOUT = (
    LAYOUT.replace(
        "bpf = compiler.compile_module(loader.SOURCE)",
        """from fairsched.bpf.program_sets import NVIDIA_IOCTL
defines = loader.defines_of(NVIDIA_IOCTL, {"FS_PLAIN_NODES": 1}, loader.abilities_for(NVIDIA_IOCTL))
bpf = compiler.compile_module(NVIDIA_IOCTL.source, defines)""",
    )
    .replace(
        '"ctx_by_slot", "clock_by_gpu", "gpu_time_by_key", "delay_by_key"',
        '"maker_by_tgid", "calls_by_proc", "vram_by_cgroup", "budget_by_owner", "limits_of_all"',
    )
    .replace(
        '"graphs_by_slot", "gpu_by_dev", "gpu_by_uuid"',
        '"client_by_handle", "object_by_key", "clients_by_file", "node_by_inode"',
    )
)
DRIVER_SEEN = {
    "maker_by_tgid.leaf": abi.Maker,
    "vram_by_cgroup.leaf": abi.CgroupVram,
    "budget_by_owner.leaf": abi.Budget,
    "limits_of_all.leaf": abi.Limits,
    "calls_by_proc.key": abi.Caller,
    "calls_by_proc.leaf": abi.Calls,
    "client_by_handle.leaf": abi.Client,
    "object_by_key.key": abi.ObjectKey,
    "object_by_key.leaf": abi.Object,
    "clients_by_file.leaf": abi.File,
    "node_by_inode.key": abi.Inode,
}


def test_bcc_sees_the_layout_of_the_drivers_objects() -> None:
    done = subprocess.run([sys.executable, "-c", DRIVER_LAYOUT], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, mirror in DRIVER_SEEN.items():
        size, fields = found[name]
        places = {field[0]: getattr(mirror, field[0]) for field in mirror._fields_}
        assert size == ctypes.sizeof(mirror), name
        assert fields == {field: [place.offset, place.size] for field, place in places.items()}, name


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: another inode, so nobody else's processes run through our probes."""
    directory = tmp_path_factory.mktemp("lib")
    return Path(shutil.copy(build().library_dir / "libcuda.so.1", directory))


def test_every_probe_sits_behind_the_single_stepped_instruction(libcuda: Path) -> None:
    """The simulated exports begin as the real ones do, so this is what a real libcuda costs."""
    probe = GpuTimeProbe()
    try:
        library = probe.attach_library(str(libcuda), timeout_s=240)
        stat = libcuda.stat()
        assert (library.device, library.inode) == (stat.st_dev, stat.st_ino)
        assert library.failures == {}
        assert library.cheap == library.probes > 100
        again = probe.attach_library(str(libcuda))
        assert again == library, "one inode is attached once"
        assert len(probe.libraries) == 1
    finally:
        probe.close()


def test_modules_in_the_working_directory_are_none_of_the_loaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is root, and ``-m`` would look there first."""
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    loaded = child.load("nvidia_ioctl", ["life"], {"FS_PLAIN_NODES": 1})
    for fd in loaded.fds.values():
        os.close(fd)
    assert loaded.programs("life")


# In a process of its own, as a loader is: machine code by program.
CODE = """
import ctypes, json
from fairsched.bpf import loader, objects, syscall
found = {}
for name, fd in loader.load(multi=syscall.has_uprobe_multi())[1].items():
    code = (ctypes.c_uint8 * (1 << 16))()
    info = objects._ProgInfo(jited_prog_len=len(code), jited_prog_insns=ctypes.addressof(code))
    objects.call(objects.OBJ_GET_INFO_BY_FD, objects._InfoAttr(fd, ctypes.sizeof(info), ctypes.addressof(info)))
    found[name] = bytes(code[: info.jited_prog_len]).hex()
print(json.dumps(found))
"""
ON_TRACEPOINTS = {"on_exit", "on_drain_end", "on_ctx_gone"}
OWN_STACK = bytes.fromhex("654c030c25")
"""``add %gs:..., %r9``: its stack is this processor's."""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="host: other machine code")
def test_no_program_on_a_uprobe_has_a_stack_that_another_task_would_share() -> None:
    """It can be preempted there: see stay_on_stack in maps.h."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = {name: bytes.fromhex(code) for name, code in json.loads(done.stdout).items()}
    if not all(found.values()):
        pytest.skip("host: the kernel does not show machine code")
    assert len(found) > 40
    assert [name for name, code in found.items() if OWN_STACK in code and name not in ON_TRACEPOINTS] == []
