# SPDX-License-Identifier: Apache-2.0
"""Device numbers and GPUs of the driver, from what it and the kernel write."""

from __future__ import annotations

import struct
from pathlib import Path

from fairsched.bpf.abi import Node
from fairsched.driver import devices
from fairsched.driver.devices import Card

DEVICES_595 = """Character devices:
  1 mem
  5 /dev/tty
195 nvidia
195 nvidiactl
195 nvidia-modeset
234 nvidia-nvswitch
235 nvidia-caps-imex-channels
236 nvidia-caps
508 nvidia-uvm

Block devices:
  8 sd
195 nvidia-uvm
"""
DEVICES_535 = "Character devices:\n195 nvidia-frontend\n510 nvidia-uvm\n511 nvidia-caps\n"
INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 176
GPU UUID: \t GPU-3b1ff3d6-4ee2-5b2f-a1c5-97e9a5b5c0de
Video BIOS: \t 96.00.74.00.01
Bus Location: \t 0000:65:00.0
Device Minor: \t 3
GPU Excluded:\t No
"""
UUID = "GPU-3b1ff3d6-4ee2-5b2f-a1c5-97e9a5b5c0de"


def test_majors_of_both_generations_are_told_by_name() -> None:
    assert devices.parse_majors(DEVICES_595) == {
        195: Node.GPU,
        235: Node.OTHER,
        236: Node.CAPS,
        508: Node.UVM,
    }
    assert devices.parse_majors(DEVICES_535) == {195: Node.GPU, 510: Node.UVM, 511: Node.CAPS}
    assert devices.parse_majors("") == {}


def test_a_block_device_is_no_node_of_the_drivers() -> None:
    assert devices.parse_majors("Block devices:\n195 nvidia\n") == {}


def test_minor_and_uuid_are_read_and_none_is_not_zero() -> None:
    assert devices.parse_information(INFORMATION) == (3, UUID)
    assert devices.parse_information("GPU UUID: \t GPU-????????-????\nDevice Minor: \t 0\n") == (0, None)
    assert devices.parse_information("") == (None, None)


def make_proc(root: Path, minors: dict[str, int | None]) -> Path:
    for number, (pci, minor) in enumerate(minors.items()):
        directory = root / "driver/nvidia/gpus" / pci
        directory.mkdir(parents=True)
        text = f"GPU UUID: \t GPU-00000000-0000-0000-0000-{number:012d}\n"
        if minor is not None:
            text += f"Device Minor: \t {minor}\n"
        (directory / "information").write_text(text)
    return root


def uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def test_cards_come_by_minor_and_one_without_is_left_out(tmp_path: Path) -> None:
    proc = make_proc(tmp_path, {"0000:17:00.0": 1, "0000:65:00.0": 0, "0000:ca:00.0": None})
    assert devices.read_cards(proc) == [
        Card(0, uuid(1), "0000:65:00.0"),
        Card(1, uuid(0), "0000:17:00.0"),
    ]
    assert devices.read_cards(tmp_path / "none") == []


def test_a_slot_is_found_through_instance_minor_and_uuid() -> None:
    cards = [Card(0, uuid(0), ""), Card(1, uuid(1), ""), Card(2, None, "")]
    slots = {uuid(0): 7, uuid(1): 4}
    assert devices.choose_slots(cards, slots, {0: 1, 1: 0, 5: 2}) == {0: 4, 1: 7}
    assert devices.choose_slots(cards, slots, None) == {0: 7, 1: 4}, "assumed: the instance is the minor"
    assert devices.choose_slots(cards, slots, {40: 0}) == {}, "no such instance fits"
    assert devices.choose_slots(cards, {}, {0: 0}) == {}


def test_where_the_driver_cannot_be_asked_the_order_is_assumed_and_said(tmp_path: Path) -> None:
    proc = make_proc(tmp_path / "proc", {"0000:17:00.0": 1, "0000:65:00.0": 0})
    found = devices.find_instances({uuid(0): 0, uuid(1): 1}, proc, tmp_path / "dev")
    assert dict(found.slot_of) == {1: 0, 0: 1}
    assert found.is_assumed
    assert "cannot be asked" in found.reason
    nothing = devices.find_instances({uuid(0): 0, uuid(1): 1}, tmp_path / "none", tmp_path / "dev")
    assert dict(nothing.slot_of) == {0: 0, 1: 1}
    assert nothing.is_assumed


def test_a_plain_file_is_no_driver_to_ask(tmp_path: Path) -> None:
    """ENOTTY: an error, no number."""
    proc = make_proc(tmp_path / "proc", {"0000:65:00.0": 0})
    (tmp_path / "nvidiactl").write_bytes(b"")
    found = devices.find_instances({uuid(0): 0}, proc, tmp_path)
    assert dict(found.slot_of) == {0: 0}
    assert found.is_assumed


def test_card_info_rows_that_are_not_valid_are_skipped() -> None:
    row = struct.pack("=B3x12xI36xI12x", 1, 0x6500, 3)
    assert len(row) == 72
    assert devices.parse_card_info(row + bytes(72 * 31)) == {0x6500: 3}


def test_simulated_nodes_are_files_named_like_the_drivers(tmp_path: Path) -> None:
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm", "nvidia-uvm-tools", "other"):
        (tmp_path / name).write_bytes(b"")
    found = {path.name: node for path, node in devices.plain_nodes(tmp_path).items()}
    assert found == {
        "nvidiactl": Node.GPU,
        "nvidia0": Node.GPU,
        "nvidia-uvm": Node.UVM,
        "nvidia-uvm-tools": Node.UVM,
    }
