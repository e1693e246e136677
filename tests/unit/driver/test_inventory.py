# SPDX-License-Identifier: Apache-2.0
"""What there is to open, read from files laid out as /proc is."""

from __future__ import annotations

from pathlib import Path

from fairsched.bpf.abi import Node
from fairsched.driver.inventory import Devices, parse_all_majors, parse_caps, read_devices, signature
from tests.unit.driver.test_devices import DEVICES_535, DEVICES_595, make_proc, uuid

CAPS = """config 1
monitor 2
gpu0/gi0/access 3
gpu0/gi0/ci0/access 4
gpu1/gi0/access 138
gpu7/gi14/ci7/access 1080
"""


def make_driver(root: Path) -> Path:
    """Minors against the order of the bus, as it happens."""
    proc = make_proc(root, {"0000:17:00.0": 1, "0000:65:00.0": 0})
    (proc / "driver/nvidia-caps").mkdir()
    (proc / "driver/nvidia-caps/mig-minors").write_text(CAPS)
    (proc / "devices").write_text(DEVICES_595)
    return proc


def test_every_character_device_named_after_nvidia_is_of_a_kind() -> None:
    kinds = {195: Node.GPU, 234: Node.OTHER, 235: Node.OTHER, 236: Node.CAPS, 508: Node.UVM}
    assert parse_all_majors(DEVICES_595) == kinds
    assert parse_all_majors(DEVICES_535) == {195: Node.GPU, 510: Node.UVM, 511: Node.CAPS}


def test_the_fixed_major_is_known_without_a_driver() -> None:
    assert parse_all_majors("") == Devices().majors == {195: Node.GPU}
    assert not Devices().has_driver


def test_capabilities_belong_to_gpus_and_the_others_to_none() -> None:
    assert parse_caps(CAPS) == {3: 0, 4: 0, 138: 1, 1080: 7}


def test_what_there_is_is_read_whole(tmp_path: Path) -> None:
    devices = read_devices(make_driver(tmp_path))
    assert devices.gpus == {0: uuid(1), 1: uuid(0)}
    assert devices.majors[508] is Node.UVM
    assert devices.caps == {3: 0, 4: 0, 138: 1}  # of GPUs that are there


def test_without_a_driver_there_is_nothing_and_no_error(tmp_path: Path) -> None:
    assert read_devices(tmp_path) == Devices()


def test_the_signature_changes_with_modules_and_gpus(tmp_path: Path) -> None:
    proc = make_driver(tmp_path)
    before = signature(proc)
    assert signature(proc) == before
    (proc / "devices").write_text(DEVICES_535)
    after = signature(proc)
    assert after != before
    (proc / "driver/nvidia/gpus/0000:99:00.0").mkdir()
    assert signature(proc) not in (before, after)
