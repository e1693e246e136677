# SPDX-License-Identifier: Apache-2.0
"""Which GPUs the CUDA ordinals of a process mean, out of an environment that is anybody's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.gpu.nvml import Gpu, Mig
from fairsched.gpu.visible import NAMES, visible_slots

GPUS = tuple(Gpu(f"GPU-{n}{n}{n}{n}{n}{n}{n}{n}-0000-0000-0000-00000000000{n}", index=n) for n in range(4))


def instance(parent: int, gi: int, uuid: str, ci: int = 0) -> Gpu:
    return Gpu(uuid, parent, "A100 MIG 3g.20gb", mig=Mig(GPUS[parent].uuid, gi, ci, "3g.20gb"))


SPLIT = (
    replace(GPUS[0], name="A100"),
    instance(1, 1, "MIG-aaaaaaaa-0000-0000-0000-000000000001"),
    instance(1, 2, "MIG-aaaaaaaa-0000-0000-0000-000000000002"),
    instance(1, 2, "MIG-bbbbbbbb-0000-0000-0000-000000000003", ci=1),
    instance(3, 1, "MIG-cccccccc-0000-0000-0000-000000000004"),  # GPU 2 is in MIG mode, too, and has none
    replace(instance(3, 2, "MIG-dddddddd-0000-0000-0000-000000000005"), is_gone=True),
)
"""Slot 0 a whole GPU, 1 to 3 instances of GPU 1, 4 of GPU 3; 5 was one."""


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": " 3 , 1 "}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,7,2"}, [1]),  # CUDA ends the list at the first it does not know
        ({"CUDA_VISIBLE_DEVICES": "1,,2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": GPUS[3].uuid}, [3]),
        ({"CUDA_VISIBLE_DEVICES": f"{GPUS[3].uuid},0"}, [3, 0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-222"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, []),  # fits several
        ({"CUDA_VISIBLE_DEVICES": "GPU-9"}, []),
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{GPUS[0].uuid}/1/0"}, []),  # there is no MIG here
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [0, 1, 2, 3]),
        ({"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"NVIDIA_VISIBLE_DEVICES": "2,3"}, [2, 3]),
        ({"NVIDIA_VISIBLE_DEVICES": "3,2"}, [2, 3]),  # in a container they are numbered as on the host
        # the container sees two GPUs and calls them 0 and 1
        ({"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, [3]),
        ({"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": GPUS[1].uuid, "CUDA_VISIBLE_DEVICES": "0"}, [1]),
        ({"NVIDIA_VISIBLE_DEVICES": GPUS[1].uuid, "CUDA_VISIBLE_DEVICES": GPUS[0].uuid}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, []),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),  # all of one model
    ],
)
def test_the_environment_says_what_an_ordinal_means(environ: dict[str, str], slots: list[int]) -> None:
    assert visible_slots(GPUS, environ) == slots


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({}, [1]),  # one MIG instance, and no whole GPU beside it
        ({"CUDA_VISIBLE_DEVICES": "0"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "3,1"}, [4]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, []),  # in MIG mode, without instances
        ({"CUDA_VISIBLE_DEVICES": GPUS[1].uuid}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-bbbbbbbb-0000-0000-0000-000000000003"}, [3]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-cc"}, [4]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-aa"}, []),  # fits two
        ({"CUDA_VISIBLE_DEVICES": "MIG-"}, []),
        ({"CUDA_VISIBLE_DEVICES": "MIG-dddddddd-0000-0000-0000-000000000005"}, []),  # gone
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{GPUS[1].uuid}/2/1"}, [3]),
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{GPUS[1].uuid}/2/0"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{GPUS[1].uuid}/2"}, []),
        ({"CUDA_VISIBLE_DEVICES": f"MIG-{GPUS[1].uuid}/9/9"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "1:1"}, [2]),
        ({"NVIDIA_VISIBLE_DEVICES": "1:9"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "0:0"}, []),  # a whole GPU has no instances
        ({"NVIDIA_VISIBLE_DEVICES": "9:0"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "1:2,3:0", "CUDA_VISIBLE_DEVICES": "1"}, [4]),
        ({"NVIDIA_VISIBLE_DEVICES": "1:1,1:2", "CUDA_VISIBLE_DEVICES": "0"}, [2]),
        ({"NVIDIA_VISIBLE_DEVICES": SPLIT[4].uuid, "CUDA_VISIBLE_DEVICES": SPLIT[1].uuid}, []),
    ],
)
def test_a_process_sees_one_mig_instance(environ: dict[str, str], slots: list[int]) -> None:
    assert visible_slots(SPLIT, environ) == slots


@pytest.mark.parametrize(
    ("environ", "slots"),
    [
        ({}, []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [1]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1]),
        ({"CUDA_DEVICE_ORDER": "pci_bus_id"}, []),
        ({"CUDA_VISIBLE_DEVICES": GPUS[1].uuid}, [1]),  # a UUID needs no order
        ({"NVIDIA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, [1]),  # nor does one that is alone
    ],
)
def test_the_order_of_gpus_of_several_models_is_not_known(environ: dict[str, str], slots: list[int]) -> None:
    mixed = (replace(GPUS[0], name="L4"), replace(GPUS[1], name="H100"))
    assert visible_slots(mixed, environ) == slots


HOSTILE = [
    "²",
    "१",
    "9" * 5000,
    "1" + "\0" * 10,
    "GPU-" + "a" * 100_000,
    "," * 100_000,
    "0," * 100_000,
    ":",
    "0:",
    "0:²",
    "MIG-GPU-//",
    "0x1",
    "1e3",
    " ",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", HOSTILE)
def test_garbage_names_nothing_and_breaks_nothing(name: str, text: str) -> None:
    for gpus in (GPUS, SPLIT, ()):
        slots = visible_slots(gpus, {name: text})
        assert all(0 <= slot < len(gpus) for slot in slots) and len(slots) <= 256


@given(st.dictionaries(st.sampled_from(NAMES), st.text(alphabet="0123GPUMI-:/, ²ab", max_size=40)))
def test_whatever_it_says_only_gpus_that_are_there_are_named(environ: dict[str, str]) -> None:
    slots = visible_slots(SPLIT, environ)
    assert all(not SPLIT[slot].is_gone for slot in slots)
    assert len(slots) <= 1 or all(SPLIT[slot].mig is None for slot in slots)
