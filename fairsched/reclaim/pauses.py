# SPDX-License-Identifier: Apache-2.0
"""Tells which processes stand still, by whom, and what a signal comes to there.

A process that is frozen (cgroup.freeze, the freezer of cgroup v1) or stopped (SIGSTOP) and has a handler for SIGTERM
gets it when it runs again; frozen by cgroup v2 and without a handler SIGTERM ends it at once (measured on Linux 6.18).
SIGKILL ends one that is stopped, or frozen by cgroup v2, at once; one in the freezer of v1 only after a thaw.

Our own holds are in the journal. Those of a daemon that runs end at their deadline, seconds away, and are left to it;
those of one that has died are thawed as ``fairsched release`` does (:func:`release_dead`). What somebody else has
paused stays as it is (law 4): it is said who, as far as the path tells, and how it is undone.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairsched.cgroup.identity import CONTAINERS, Kind, layers_of
from fairsched.cgroup.journal import Entry, Journal
from fairsched.cgroup.names import Names, known_as
from fairsched.cgroup.path import Mount, find_v1_mount
from fairsched.cgroup.release import Release, release_all
from fairsched.cgroup.state import CGROUP_FREEZE
from fairsched.cgroup.tree import cgroup_path_of
from fairsched.cgroup.v1 import FREEZER, STATE
from fairsched.errors import FairschedError
from fairsched.reclaim.facts import Facts


@dataclass(frozen=True)
class Pause:
    """Why a process stands still."""

    text: str
    """For people: by whom, and what ends it."""
    is_ours: bool = False
    """A hold of fairsched."""
    keeps_kill: bool = False
    """Not even SIGKILL is delivered before it is over."""


def pauses_of(
    processes: Iterable[Facts], mount: Mount | None, run_dir: Path, names: Names
) -> dict[int, Pause]:
    """By pid, of those that stand still."""
    holds = _holds(run_dir)
    by_id = {entry.cgroup_id: entry for entry in holds}
    by_id |= {group.id: entry for entry in holds for group in entry.groups}
    stopped = {process for entry in holds for process in entry.stopped}
    v1 = find_v1_mount(FREEZER)
    frozen: dict[tuple[str, bool], tuple[str, int] | None] = {}
    found: dict[int, Pause] = {}
    for facts in processes:
        for where, file, is_v1 in ((mount, CGROUP_FREEZE, False), (v1, STATE, True)):
            path = None if where is None else cgroup_path_of(facts.pid, where) if is_v1 else facts.cgroup
            if where is None or path is None:
                continue
            if (path, is_v1) not in frozen:
                frozen[path, is_v1] = _frozen_at(where, path, file)
            at = frozen[path, is_v1]
            if at is not None and facts.pid not in found:
                entry = by_id.get(at[1])
                text = _held(entry) if entry else _frozen_text(where, at[0], file, is_v1, names)
                found[facts.pid] = Pause(text, entry is not None, keeps_kill=is_v1)
        if facts.state == "T" and facts.pid not in found:
            is_ours = facts.id in stopped
            entry = next((one for one in holds if facts.id in one.stopped), None)
            text = _held(entry) if entry else f"stopped (SIGSTOP or Ctrl-Z): kill -CONT {facts.pid}"
            found[facts.pid] = Pause(text, is_ours)
    return found


def release_dead(run_dir: Path, mount: Mount | None, cgroups: Iterable[str]) -> list[Release]:
    """Thaw what a daemon that has died holds of these cgroups. Raises KernelRefused: its journal is not ours."""
    wanted = [path for path in cgroups if path]
    if mount is None or not os.path.isdir(run_dir / "holds"):
        return []
    journal = Journal(str(run_dir / "holds"))
    try:
        return release_all(
            journal,
            mount,
            only=lambda entry: (
                not entry.daemon.is_alive()
                and any(path == entry.path or path.startswith(f"{entry.path}/") for path in wanted)
            ),
        )
    finally:
        journal.close()


def _holds(run_dir: Path) -> list[Entry]:
    """What fairsched holds; nothing where the journal cannot be read."""
    directory = run_dir / "holds"
    if not os.path.isdir(directory):  # Path.is_dir raises where a directory above may not be searched
        return []
    try:
        journal = Journal(str(directory))
    except FairschedError:
        return []
    try:
        return [entry for entry in journal.entries() if isinstance(entry, Entry)]
    finally:
        journal.close()


def _frozen_at(mount: Mount, path: str, file: str) -> tuple[str, int] | None:
    """The nearest cgroup, from this one up, whose own file asks for a freeze: its path and id."""
    for one in _upward(path):
        directory = mount.absolute(one)
        try:
            text = Path(f"{directory}/{file}").read_text(encoding="ascii").strip()
            if text in ("1", "FROZEN", "FREEZING"):
                return one, os.stat(directory).st_ino
        except OSError:
            continue  # the root has no such file
    return None


def _upward(path: str) -> Iterator[str]:
    while path and path != "/":
        yield path
        path = path.rpartition("/")[0]


def _held(entry: Entry) -> str:
    if entry.daemon.is_alive():
        return f"held by fairsched ({entry.reason}): its daemon thaws it in a moment"
    return "held by a fairsched daemon that has died: it is thawed, as fairsched release does"


def _frozen_text(mount: Mount, path: str, file: str, is_v1: bool, names: Names) -> str:
    """Names in what is to be typed are quoted: whoever may make a cgroup chooses them."""
    value = "THAWED" if is_v1 else "0"
    remedy = f"echo {value} > {shlex.quote(f'{mount.absolute(path)}/{file}')}"
    for layer in layers_of(path):
        if layer.cgroup == path and layer.kind in CONTAINERS:
            kind, _, name = (known_as(path, names) or "").partition(" ")
            tool = kind if kind in ("docker", "podman") else "docker, podman or nerdctl"
            remedy = f"{tool} unpause {shlex.quote(name or (layer.container_id or '')[:12])}"
        elif layer.cgroup == path and layer.kind is Kind.UNIT:
            remedy = f"systemctl thaw {shlex.quote(layer.unit or '')}"
    return f"frozen by somebody else ({path}), and left so; to thaw it: {remedy}"
