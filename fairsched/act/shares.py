# SPDX-License-Identifier: Apache-2.0
"""Tells a vendor's kernel module what each container is owed, where such a module divides the GPU (`brake: cgpu`).

Problem. Modules like cGPU share a GPU's compute between containers by themselves, by a percentage in a file. Nobody has
to be held there; but somebody has to turn weights and quotas into those percentages, and to take them back.

Approach. Once a second: what tenants with containers on a GPU are owed there by weights (fairsched.policy.shares),
in whole percent of the GPU, evenly divided between a tenant's containers, at least one each; a quota likewise into the
other file. Demand is not asked for: what a container leaves, the module gives to the others, or does not.

It is no brake: it gives shares and makes no holds. Control law, holds, debts and the ending of processes stand still
(mode observe); accounts, status and metrics go on. It keeps the promises of brakes all the same:

* a file and what it said before are in the journal of holds before it is written;
* a record has a deadline, and is renewed long before: where the daemon dies or hangs, the guardian puts all back;
* a file that somebody else has written since is theirs, until the daemon is started anew;
* who is exempt is not touched.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fairsched.base.printable import word
from fairsched.base.process import ProcessId
from fairsched.cgroup.identity import innermost, layers_of
from fairsched.cgroup.journal import BrakeName, Entry, Journal, read_boot_id
from fairsched.cgroup.share_file import Written, put_back, read, write
from fairsched.config import Config
from fairsched.errors import KernelRefused
from fairsched.gpu.nvml import Gpu
from fairsched.model import TenantSpec
from fairsched.observe.tree import Tree
from fairsched.policy.shares import entitlements, spec_for

logger = logging.getLogger(__name__)

LEASE_NS = 60_000_000_000
_PERIOD_NS = 1_000_000_000


@dataclass(frozen=True)
class _Container:
    id: str
    tenant: str
    cgroup_id: int
    path: str


class ShareFiles:
    """Call :meth:`poll` often. Leaving it puts all back."""

    def __init__(
        self,
        run_dir: Path,
        tree: Tree,
        gpus: Sequence[Gpu],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Raises KernelRefused."""
        self._journal = Journal(str(run_dir / "holds"))
        self._tree, self._gpus, self._clock_ns = tree, gpus, clock_ns
        self._entries: dict[int, Entry] = {}
        """By cgroup id of the container."""
        self._left: set[str] = set()
        """Files that are somebody else's, or do not take what is written."""
        self._next_ns = 0

    def __enter__(self) -> ShareFiles:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def poll(self, config: Config, specs: Mapping[str, TenantSpec], *, is_wanted: bool) -> None:
        """Bring the files up to date, at most once a second. What fails is logged, once for each file.

        ``is_wanted``: else all is put back.
        """
        now_ns = self._clock_ns()
        if not is_wanted:
            self._put_back(list(self._entries))
            return
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _PERIOD_NS
        try:
            self._see_others()
        except KernelRefused as error:
            logger.error("share=failed error=%r", str(error))
        wanted = self._wanted(config, specs)
        self._put_back([key for key in self._entries if key not in wanted])
        for key, (container, values) in wanted.items():
            try:
                self._update(container, values, now_ns, self._entries.get(key))
            except KernelRefused as error:  # of the journal: then nothing is written
                logger.error("share=failed tenant=%s error=%r", word(container.tenant), str(error))

    def close(self) -> None:
        """Put back what the files said before."""
        self._put_back(list(self._entries))
        self._journal.close()

    def _containers(self) -> list[_Container]:
        paths, found = self._tree.paths or {}, dict[str, _Container]()
        for view in self._tree.tenants.values():
            for cgroup_id in sorted(view.cgroup_ids):
                layer = innermost(layers_of(paths.get(cgroup_id, "/")))
                if layer is not None and layer.container_id and not layer.is_helper:
                    one = _Container(layer.container_id, view.name, cgroup_id, paths[cgroup_id])
                    found.setdefault(layer.container_id, one)
        return list(found.values())

    def _wanted(
        self, config: Config, specs: Mapping[str, TenantSpec]
    ) -> dict[int, tuple[_Container, dict[str, str]]]:
        """By container's cgroup id: the files to write and their values."""
        wanted: dict[int, tuple[_Container, dict[str, str]]] = {}
        containers = self._containers()
        for slot, gpu in enumerate(self._gpus):
            index = slot if gpu.index is None else gpu.index
            there: dict[str, list[tuple[_Container, str]]] = {}
            for one in containers:
                path = _fill(config.cgpu.share_file, index, gpu.uuid, one.id)
                if path is not None and os.path.exists(path):
                    there.setdefault(one.tenant, []).append((one, path))
            owed = entitlements(there, specs, gpu.uuid)
            for tenant, members in there.items():
                spec = spec_for(tenant, specs)
                if spec.is_exempt:
                    continue
                for one, path in members:
                    files = wanted.setdefault(one.cgroup_id, (one, {}))[1]
                    files[path] = _percent(owed[tenant] / len(members))
                    cap = _fill(config.cgpu.cap_file, index, gpu.uuid, one.id)
                    if cap is not None and spec.quota_ratio is not None and os.path.exists(cap):
                        files[cap] = _percent(spec.quota_ratio / len(members))
        return wanted

    def _see_others(self) -> None:
        """What somebody else has written is theirs; what was put back from our record is written again."""
        for key, entry in list(self._entries.items()):
            is_on_record, kept = self._journal.has(entry.name), list[Written]()
            for file in entry.files:
                try:
                    said = read(file.path)
                except KernelRefused:
                    said = file.after
                if said == file.after:
                    kept.append(file)
                elif said is not None and (is_on_record or said != file.before):
                    self._leave(file.path, entry.tenant, f"somebody else has written {said!r}")
            if not is_on_record and not kept:
                del self._entries[key]
            elif len(kept) < len(entry.files) or not is_on_record:  # who only deletes it has put nothing back
                self._record(key, replace(entry, files=tuple(kept)))

    def _update(
        self, container: _Container, values: Mapping[str, str], now_ns: int, old: Entry | None
    ) -> None:
        before = {} if old is None else {file.path: file for file in old.files}
        files: list[Written] = []
        for path, value in values.items():
            if path in self._left:
                continue
            try:
                said = before[path].before if path in before else read(path)
            except KernelRefused as error:
                self._leave(path, container.tenant, str(error))
                continue
            if said is not None:
                files.append(Written(path, said, value))
        dropped = [file for path, file in before.items() if path not in {one.path for one in files}]
        is_same = old is not None and old.files == tuple(files)
        if is_same and old is not None and old.deadline_ns - now_ns > LEASE_NS // 2:
            return
        if old is None:
            me, boot = ProcessId.me(), read_boot_id()
            old = Entry(
                container.cgroup_id, container.path, container.tenant, "share", now_ns, 0, me, boot,
                brake=BrakeName.CGPU,
            )  # fmt: skip
        # until they are written, the record says of each what it may say: the old value or the new one
        changed = [file for file in files if before.get(file.path) != file]
        entry = replace(old, deadline_ns=now_ns + LEASE_NS, tenant=container.tenant)
        transition = [before[file.path] for file in changed if file.path in before]
        self._record(container.cgroup_id, replace(entry, files=(*files, *transition, *dropped)))
        _try(dropped)
        for file in changed:
            try:
                write(file.path, file.after)
            except KernelRefused as error:
                self._leave(file.path, container.tenant, str(error))
                _try([file, *(one for one in transition if one.path == file.path)])
                files.remove(file)
        self._record(container.cgroup_id, replace(entry, files=tuple(files)))

    def _record(self, key: int, entry: Entry) -> None:
        if entry.files:
            self._journal.write(entry)
            self._entries[key] = entry
        elif self._entries.pop(key, None) is not None:
            self._journal.remove(entry.name)

    def _put_back(self, keys: Sequence[int]) -> None:
        for key in keys:
            entry = self._entries[key]
            try:
                put_back(entry.files)
                self._journal.remove(entry.name)
            except KernelRefused as error:  # it stays on record for the guardian and `fairsched release`
                logger.error("share=kept tenant=%s error=%r", word(entry.tenant), str(error))
                continue
            del self._entries[key]

    def _leave(self, path: str, tenant: str, why: str) -> None:
        self._left.add(path)
        logger.warning("share=left_alone tenant=%s file=%s why=%r", word(tenant), word(path), why)


def _try(files: Sequence[Written]) -> None:
    try:
        put_back(files)
    except KernelRefused as error:
        logger.error("share=not_put_back error=%r", str(error))


def _fill(layout: str | None, index: int, uuid: str, container: str) -> str | None:
    if layout is None:
        return None
    return layout.format(gpu=index, uuid=uuid, container=container, container12=container[:12])


def _percent(ratio: float) -> str:
    """Rounded down, so that all together never exceed the GPU, but never nothing."""
    return str(max(1, int(100 * ratio + 1e-9)))
