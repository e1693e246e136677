# SPDX-License-Identifier: Apache-2.0
"""Resets a GPU on which nothing runs, or says why that cannot be.

A reset takes away every context on the GPU. So it is only done where nobody has one: NVML lists no process, no
descriptor of its device file is open but that of nvidia-persistenced, and it is not a MIG instance, a vGPU or one that
drives a display. The driver has the last word: its refusal is told as it says it, with what is known of the GPU that
explains it.

The sequence: persistence mode off, if it is on; ``nvidia-smi --gpu-reset -i UUID``; persistence mode as it was; then
the GPU is looked up anew by its UUID, and must be there, without processes.

Source: nvidia-smi(1), "--gpu-reset": needs root, no process on the GPU, not on vGPU guests; GPUs joined by NVLink may
have to be reset together before Hopper.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from fairsched.gpu.nvml import Nvml
from fairsched.gpu.state import ResetFacts, reset_facts, set_persistence
from fairsched.reclaim.holder import Listing
from fairsched.reclaim.listing import Lister

TIMEOUT_S = 120.0
"""A reset takes seconds; of eight GPUs joined by NVLink longer."""
_NO_PROGRAM = "there is no nvidia-smi, by which the driver resets"
_PERSISTENCED = "nvidia-persistenced"[:15]
"""As the kernel keeps the name of a program."""
_SYSTEM_UIDS = 1000
"""Users below are of services; a person's program that calls itself so keeps the GPU as any other does."""
Run = Callable[[list[str]], tuple[int, str]]


@dataclass(frozen=True)
class ResetResult:
    """What came of it."""

    is_done: bool
    text: str


def obstacles(facts: ResetFacts, listing: Listing, *, is_root: bool) -> list[str]:
    """Why a GPU cannot be reset now (pure); empty: nothing is known that is in the way."""
    found = []
    holders = [one for one in listing.holders if one.status.gpu == facts.uuid]
    if holders:
        found.append(
            f"in use by {', '.join(sorted({f'{one.pid} ({_name(one.pid, listing)})' for one in holders}))}"
        )
    opened = [pid for pid in listing.gpu(facts.uuid).openers if not _is_persistenced(pid, listing)]
    if opened:
        found.append(
            f"its device file is open in {', '.join(f'{pid} ({_name(pid, listing)})' for pid in opened)}"
        )
    if facts.is_instance:
        found.append("a MIG instance cannot be reset, only its whole GPU")
    if facts.has_instances:
        found.append(
            "it is in MIG mode: destroy its instances first (nvidia-smi mig -dci, -dgi), or reset by hand"
        )
    if facts.virtualization == "vgpu":
        found.append("it is a vGPU in a guest: the host resets it")
    if facts.virtualization in ("host_vgpu", "host_vsga"):
        found.append("it is shared out as vGPUs to guests of this host: end these first")
    if facts.has_display:
        found.append("a display is driven by it: stop the display manager first")
    if not is_root:
        found.append("a reset needs root: use sudo")
    return found


def hints(facts: ResetFacts) -> list[str]:
    """What may explain a refusal of the driver (pure)."""
    found = []
    if facts.peers:
        found.append(f"joined by NVLink to {', '.join(facts.peers)}: before Hopper these are reset together")
    if facts.is_draining:
        found.append("it is being drained (nvidia-smi drain): somebody is about to take it out")
    if facts.virtualization == "passthrough":
        found.append("passed through to this guest: the hypervisor may forbid it")
    return found


def outlook(lister: Lister, listing: Listing, ending: Collection[int], uuid: str) -> str:
    """Whether a GPU can be reset when these processes have ended, as far as is known before."""
    view = listing.gpu(uuid)
    if view.driver is not None:
        return f"no reset of {view.index}: a GPU of {view.driver} is listed only"
    if view.slot is None:
        return "no reset: NVML does not know that GPU here"
    rest = Listing(
        tuple(one for one in listing.holders if one.pid not in ending),
        tuple(
            replace(one, openers=tuple(pid for pid in one.openers if pid not in ending))
            for one in listing.gpus
        ),
        listing.table,
    )
    facts = reset_facts(lister.nvml, view.slot)
    why = obstacles(facts, rest, is_root=os.geteuid() == 0)
    why += [] if shutil.which("nvidia-smi") else [_NO_PROGRAM]
    if why:
        return f"no reset of GPU {view.index}: {'; '.join(why)}"
    return "; ".join([f"then a reset of GPU {view.index}", *hints(facts)])


def reset(lister: Lister, listing: Listing, uuid: str, run: Run | None = None) -> ResetResult:
    """Resets the GPU with this UUID and verifies it. ``listing``: of just now."""
    view = listing.gpu(uuid)
    if view.driver is not None:
        return ResetResult(False, f"a GPU of {view.driver} is listed only")
    if view.slot is None:
        return ResetResult(False, "NVML does not know it here")
    facts = reset_facts(lister.nvml, view.slot)
    why = obstacles(facts, listing, is_root=os.geteuid() == 0)
    if why:
        return ResetResult(False, "; ".join(why))
    if run is None:
        program = shutil.which("nvidia-smi")
        if program is None:
            return ResetResult(False, _NO_PROGRAM)
        run = _run
    if facts.is_persistent and (error := set_persistence(lister.nvml, view.slot, is_on=False)) is not None:
        # nvidia-smi then says itself whether that is in the way
        facts_hint = [f"persistence mode could not be switched off ({error})"]
    else:
        facts_hint = []
    lister.nvml.close()  # our own handles would be clients of it
    status, said = run(["nvidia-smi", "--gpu-reset", "-i", uuid])
    lister.nvml = Nvml()
    back = _verdict(lister, uuid)
    slot = lister.look().gpu(uuid).slot
    if facts.is_persistent and slot is not None:
        set_persistence(lister.nvml, slot, is_on=True)
    if status != 0:
        known = "; ".join([*hints(facts), *facts_hint])
        return ResetResult(
            False, f"the driver refused: {said or f'status {status}'}" + (f" ({known})" if known else "")
        )
    return ResetResult(
        back is None, "done, and nothing is on it" if back is None else f"it was reset, but {back}"
    )


def _verdict(lister: Lister, uuid: str) -> str | None:
    """What is wrong with a GPU after its reset; None: nothing."""
    if lister.nvml.error is not None:
        return f"NVML does not work any more ({lister.nvml.error})"
    now = lister.look()
    view = now.gpu(uuid)
    if view.slot is None:
        return "NVML does not list it any more: look at dmesg"
    if lister.nvml.use(view.slot).is_up is False:
        return "the driver has lost it: look at dmesg; the node may need a reboot"
    on = [one.pid for one in now.holders if one.status.gpu == uuid]
    return f"processes are on it already: {', '.join(map(str, on))}" if on else None


def _run(command: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, " ".join((done.stdout + done.stderr).split())[:600]


def _is_persistenced(pid: int, listing: Listing) -> bool:
    facts = listing.table.get(pid)
    if facts is None or facts.name != _PERSISTENCED or facts.uid >= _SYSTEM_UIDS:
        return False
    return len(facts.namespace_pids) <= 1


def _name(pid: int, listing: Listing) -> str:
    facts = listing.table.get(pid)
    return "?" if facts is None else facts.name
