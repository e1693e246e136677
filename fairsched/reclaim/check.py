# SPDX-License-Identifier: Apache-2.0
"""Checks that the GPUs are free after their holders were ended, and names whoever still holds them.

That a process has ended does not say that its memory came back: a child may have inherited the descriptors, the driver
may still be taking the context down, and on some GPUs the load stays at 100 % after a kernel was killed. So NVML is
asked until what was held is gone, for a few seconds, and what is still there then is named.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fairsched.base.text import counted
from fairsched.reclaim.holder import UNSEEN_BYTES, Holder, Listing, unseen_text
from fairsched.reclaim.listing import Lister

SETTLE_S = 5.0
"""For the driver to take contexts down."""
_LOOK_S = 0.2
_LATCHED = 0.95
"""Load of a GPU on which there is nobody."""
_LOAD_S = 3.0
"""NVML tells the load of the last second or so: what is left of it then is no more of those who have ended."""


@dataclass(frozen=True)
class GpuCheck:
    """One GPU, before and after."""

    uuid: str
    index: str
    before_bytes: int | None
    after_bytes: int | None
    still: tuple[str, ...] = ()
    """What of the targets still holds it, and memory of nobody that is seen: sentences."""
    others: tuple[str, ...] = ()
    """Holders that were not to end."""
    notes: tuple[str, ...] = ()

    @property
    def is_free(self) -> bool:
        """Of what was to end."""
        return not self.still

    def plain(self) -> dict[str, Any]:
        return {**vars(self), "is_free": self.is_free}


def check(
    lister: Lister,
    before: Listing,
    gpus: Collection[str],
    targets: Mapping[int, int],
    settle_s: float = SETTLE_S,
) -> list[GpuCheck]:
    """Of these GPUs (UUIDs). ``targets``: start time in ticks by pid, of all that were to end."""
    until_s = time.monotonic() + settle_s
    while True:
        now = lister.look()
        found = [judge(before, now, uuid, targets) for uuid in sorted(gpus)]
        if all(one.is_free for one in found) or time.monotonic() >= until_s:
            return [_with_load(one, lister, now) for one in found]
        time.sleep(_LOOK_S)


def judge(before: Listing, now: Listing, uuid: str, targets: Mapping[int, int]) -> GpuCheck:
    """What is so of one GPU (pure)."""
    view, old = now.gpu(uuid), before.gpu(uuid)
    here = [one for one in now.holders if one.status.gpu == uuid]
    mine = [one for one in here if _is_target(one, targets)]
    still = [f"{one.pid} ({_name(one)}) {_how(one)}" for one in mine]
    text = unseen_text(view, now.table)
    if text is not None and (view.unseen_bytes or 0) >= (old.unseen_bytes or 0) + UNSEEN_BYTES // 2:
        still.append(text)
        text = None
    others = [f"{one.pid} ({_name(one)})" for one in here if one not in mine]
    return GpuCheck(
        uuid,
        view.index if view.index != "-" else old.index,
        old.used_bytes,
        view.used_bytes,
        tuple(still),
        tuple(others),
        () if text is None else (f"{text}, as before",),
    )


def _with_load(found: GpuCheck, lister: Lister, now: Listing) -> GpuCheck:
    slot, until_s = now.gpu(found.uuid).slot, time.monotonic() + _LOAD_S
    if slot is None or found.others or found.still:
        return found
    while (load := lister.nvml.load(slot)) is not None and load >= _LATCHED and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if load is None or load < _LATCHED:
        return found
    note = (
        f"its load stays at {load:.0%} with nobody on it: some GPUs do so after a kernel was killed; to open and close "
        "one CUDA context clears it, else --reset-gpu"
    )
    return GpuCheck(**{**vars(found), "notes": (*found.notes, note)})


def _is_target(one: Holder, targets: Mapping[int, int]) -> bool:
    if one.pid not in targets:
        return False
    return one.facts is None or one.facts.start_ticks == targets[one.pid]


def _how(one: Holder) -> str:
    has = [] if one.vram_bytes is None else [f"{one.vram_bytes / 2**30:.1f} GiB"]
    has += [] if not one.status.contexts else [counted(one.status.contexts, "context")]
    return f"still has {', '.join(has) or 'a context'}"


def _name(one: Holder) -> str:
    return "?" if one.facts is None else one.facts.name
