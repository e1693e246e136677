# SPDX-License-Identifier: Apache-2.0
"""Finds which of our GPUs the CUDA ordinals of a process mean, out of its environment (pure).

NVIDIA_VISIBLE_DEVICES is what the container runtime let in, CUDA_VISIBLE_DEVICES what CUDA shows of that, numbered
anew.
As NVIDIA's guides have it:

- an entry is an index, a UUID or the beginning of one that fits no other GPU, ``MIG-`` and a UUID, or as drivers before
  470 have it ``MIG-GPU-UUID/GPU instance/compute instance``; for containers also ``GPU:instance``, both indexes;
- the list ends at the first entry that names nothing;
- an index counts GPUs, in MIG mode or not. One in MIG mode stands for the first of its instances;
- a process sees one MIG instance, the first of those it may see, and then no whole GPU beside it.

CUDA numbers GPUs from fast to slow unless CUDA_DEVICE_ORDER is PCI_BUS_ID. Between GPUs of one model that is NVML's
order; between several models it is not known, and ordinals are not told then. All of this is what a process was started
with, which is its own to choose: what the driver says of it goes before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fairsched.gpu.nvml import Gpu

NAMES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Of the variables that :func:`visible_slots` reads."""
_INDEX = re.compile(r"[0-9]{1,4}")
_PAIR = re.compile(r"([0-9]{1,4}):([0-9]{1,4})")
_MOST_ENTRIES = 256

Groups = list[list[int]]
"""The slots of each GPU that is seen, in the order of their indexes: one of a whole GPU, those of its MIG instances."""


def visible_slots(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[int]:
    """Slots in the order of a process's CUDA ordinals; empty: it sees none, or in which order is not known."""
    groups = _all(gpus)
    let_in = environ.get("NVIDIA_VISIBLE_DEVICES")
    if let_in is not None and let_in.strip() != "all":
        groups = _let_in(let_in, gpus, groups)
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    is_ordered = _is_ordered(gpus, groups, environ.get("CUDA_DEVICE_ORDER"))
    if shown is None or shown.strip() == "all":
        chosen = [group[0] for group in groups if group] if is_ordered else []
    else:
        chosen = _shown(shown, gpus, groups, is_ordered=is_ordered)
    instances = [slot for slot in chosen if gpus[slot].mig is not None]
    return instances[:1] or chosen


def _all(gpus: Sequence[Gpu]) -> Groups:
    """By index; a GPU in MIG mode without an instance has its index, too."""
    by_index: dict[int, list[int]] = {}
    for slot, gpu in enumerate(gpus):
        index = gpu.index if gpu.index is not None else slot
        if not gpu.is_gone:
            by_index.setdefault(index, []).append(slot)
    return [by_index.get(index, []) for index in range(max(by_index, default=-1) + 1)]


def _words(text: str) -> Iterable[str]:
    return (word.strip() for word in text.split(",", _MOST_ENTRIES)[:_MOST_ENTRIES])


def _is_ordered(gpus: Sequence[Gpu], groups: Groups, order: str | None) -> bool:
    models = {(gpus[group[0]].name or "").partition(" MIG ")[0] for group in groups if group}
    return order == "PCI_BUS_ID" or len(models) < 2


def _let_in(text: str, gpus: Sequence[Gpu], groups: Groups) -> Groups:
    """What of the GPUs is in the container; in there they are numbered in NVML's order."""
    found: set[int] = set()
    for word in _words(text):
        pair = _PAIR.fullmatch(word)
        if pair is not None:
            group = groups[int(pair[1])] if int(pair[1]) < len(groups) else []
            slots = [one for one in group if gpus[one].mig is not None][int(pair[2]) :][:1]
        else:
            slots = _named(word, gpus, groups)
        if not slots:
            break
        found.update(slots)
    seen = [[slot for slot in group if slot in found] for group in groups]
    return [group for group in seen if group]


def _shown(text: str, gpus: Sequence[Gpu], groups: Groups, *, is_ordered: bool) -> list[int]:
    chosen = []
    for word in _words(text):
        if _INDEX.fullmatch(word) and not is_ordered:
            return []
        slots = _named(word, gpus, groups)
        if not slots:
            break
        chosen.append(slots[0])
    return chosen


def _named(word: str, gpus: Sequence[Gpu], groups: Groups) -> list[int]:
    """The slots an entry names: one, or those of all instances of a GPU; none."""
    if _INDEX.fullmatch(word):
        return groups[int(word)] if int(word) < len(groups) else []
    if not word.startswith(("GPU-", "MIG-")):
        return []
    matching = [group for group in groups if group and _whole_uuid(gpus[group[0]]).startswith(word)]
    matching += [
        [slot]
        for group in groups
        for slot in group
        if (mig := gpus[slot].mig) is not None and (gpus[slot].uuid.startswith(word) or mig.old_name == word)
    ]
    return matching[0] if len(matching) == 1 else []


def _whole_uuid(gpu: Gpu) -> str:
    """Of the GPU, or of the one a MIG instance is of."""
    return gpu.uuid if gpu.mig is None else gpu.mig.parent_uuid
