# SPDX-License-Identifier: Apache-2.0
"""Collects rounds for the guard: a listing, joined with what rules and limits ask of a process.

A listing says who holds which GPU. Here each holder gets what allow-lists and rules go by: groups of its user, the unit
of systemd, the image of its container, the digest of its program, the ports it is connected to, whether somebody has
stopped it, whether it waits for requests. What is not known stays
None: it matches nothing. One whose /proc entry was not seen is left out, for it has no identity.

With a daemon counters are those of the kernel's account, of processes and of whole tenants; without one only memory is
known.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairsched.cgroup import names as known_names
from fairsched.cgroup.identity import Kind, layers_of
from fairsched.cgroup.images import Image, Images
from fairsched.guard.sample import GpuLoad, Process, Round, Sample
from fairsched.reclaim.facts import Facts
from fairsched.reclaim.holder import Holder, Listing
from fairsched.reclaim.listing import Lister
from fairsched.reclaim.pauses import pauses_of
from fairsched.reclaim.plan import ancestors
from fairsched.reclaim.ports import Ports
from fairsched.reclaim.programs import Owner, Programs

_GROUPS_S = 600.0
"""How long the groups of a user are believed."""
_COMMAND_CHARS = 512
_MOST_ANCESTORS = 8
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TenantSeconds = Callable[[], Mapping[str, Mapping[str, float]]]
"""GPU seconds by tenant and GPU, as the daemon counts."""


class Collector:
    """Call :meth:`look` again and again. It waits for NVML and the daemon, and for no disk of a tenant."""

    def __init__(
        self,
        lister: Lister,
        programs: Programs | None = None,
        images: Images | None = None,
        proc: str = "/proc",
        now_s: Callable[[], float] = time.monotonic,
        tenants: TenantSeconds = dict,
        run_dir: Path = Path("/run/fairsched"),
    ) -> None:
        """``run_dir``: of the daemon, whose holds are no pauses."""
        self._lister, self._proc, self._now_s, self._tenants = lister, proc, now_s, tenants
        self._run_dir = run_dir
        self.programs, self._images = programs or Programs(proc), images or Images()
        self._boot_id = _boot_id(proc)
        self._booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._started: dict[Owner, float] = {}
        """Unix time of each start: worked out once, for the clock may be set."""
        self._groups: dict[int, tuple[float, tuple[str, ...]]] = {}

    def look(self, now_s: float | None = None) -> Round:
        """Everybody on every GPU now. ``now_s``: Unix time, of the host unless it is given. Raises as Lister does."""
        return self.round_of(self._lister.look(has_openers=False), now_s)

    def round_of(self, listing: Listing, now_s: float | None = None) -> Round:
        """Of a listing that was made just now."""
        there = {
            (holder.pid, holder.facts.start_ticks): holder
            for holder in listing.holders
            if holder.facts is not None
        }
        links = {owner: self._link(owner[0]) for owner in there}
        digests = self.programs.digests(links.items())
        processes = {
            owner: self._process(holder, owner, links[owner], digests.get(owner))
            for owner, holder in there.items()
        }
        self._started = {owner: at_s for owner, at_s in self._started.items() if owner in there}
        pauses = self._pauses([holder.facts for holder in there.values() if holder.facts is not None])
        looked, seen = Ports(self._proc), dict[int, _Seen]()
        of_mps = {holder.status.gpu for holder in listing.holders if holder.mps == "client"}
        samples = []
        for holder in listing.holders:
            if holder.facts is not None:
                if holder.pid not in seen:
                    lineage = _lineage(holder.facts, listing.table)
                    is_serving = looked.is_serving(holder.pid, lineage)
                    seen[holder.pid] = _Seen(looked.of(holder.pid), holder.pid in pauses, is_serving)
                owner = (holder.pid, holder.facts.start_ticks)
                is_server = (
                    holder.mps == "server" and holder.status.gpu in of_mps and not holder.status.launches
                )
                samples.append(_sample(holder, processes[owner], seen[holder.pid], is_server=is_server))
        gpus = {
            view.uuid: GpuLoad(view.busy_ratio, view.used_bytes, view.total_bytes, index_of(view.index))
            for view in listing.gpus
        }
        return Round(time.time() if now_s is None else now_s, tuple(samples), gpus, self._tenants())

    def _pauses(self, facts: Sequence[Facts]) -> set[int]:
        """Pids of those that somebody has stopped, and not fairsched."""
        mount = None if self._lister is None else self._lister.mount
        found = pauses_of(facts, mount, self._run_dir, known_names.shared())
        traced = {one.pid for one in facts if one.state == "t"}
        return traced | {pid for pid, pause in found.items() if not pause.is_ours}

    def _process(self, holder: Holder, owner: Owner, link: str | None, digest: str | None) -> Process:
        facts, status = holder.facts, holder.status
        assert facts is not None, "those without facts were left out"
        cgroup = status.cgroup if status.cgroup is not None else facts.cgroup
        image = Image() if cgroup is None else self._images.of(cgroup)
        return Process(
            pid=facts.pid,
            start_ticks=facts.start_ticks,
            boot_id=self._boot_id,
            uid=facts.uid,
            user=holder.user,
            groups=self._groups_of(facts.uid),
            tenant=status.tenant,
            cgroup=cgroup,
            unit=None if cgroup is None else unit_of(cgroup),
            container_id=status.container_id,
            image=image.name,
            image_digest=image.digest,
            program=link,
            program_digest=digest,
            command=(status.command or facts.command)[:_COMMAND_CHARS],
            started_s=self._started.setdefault(owner, round(self._booted_s + owner[1] / _TICKS_PER_S, 2)),
        )

    def _link(self, pid: int) -> str | None:
        try:
            return os.readlink(f"{self._proc}/{pid}/exe")
        except OSError:
            return None  # a thread of the kernel, a zombie, or not ours to look at

    def _groups_of(self, uid: int) -> tuple[str, ...]:
        known = self._groups.get(uid)
        if known is None or self._now_s() - known[0] > _GROUPS_S:
            known = self._groups[uid] = (self._now_s(), groups_of(uid))
        return known[1]


def index_of(index: str) -> int | None:
    """``0`` of ``0``, and of the MIG instance ``0/1/0``; None: it is not known."""
    first = index.partition("/")[0]
    return int(first) if first.isascii() and first.isdigit() else None


def unit_of(cgroup: str) -> str | None:
    """The innermost unit that the host's own systemd made. A user's manager makes units of any name: they are none."""
    found = None
    for layer in layers_of(cgroup):
        if not layer.is_outer or layer.user_id is not None:
            break
        if layer.kind is Kind.UNIT:
            found = layer.unit
    return found


def groups_of(uid: int) -> tuple[str, ...]:
    """Names of a user's groups, the primary one first; none where the user is not known here."""
    try:
        entry = pwd.getpwuid(uid)
        gids = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OSError):
        return ()
    names = []
    for gid in dict.fromkeys([entry.pw_gid, *gids]):
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(gid).gr_name)
    return tuple(names)


@dataclass(frozen=True)
class _Seen:
    """What was looked up of a process."""

    ports: tuple[int, ...] | None
    is_paused: bool
    is_serving: bool | None


def _lineage(facts: Facts, table: Mapping[int, Facts]) -> list[int]:
    """Its ancestors of the same user in the same cgroup, the nearest first; not the inits above them."""
    found = list[int]()
    for pid in ancestors(facts.pid, table):
        one = table.get(pid)
        if (
            one is None
            or pid <= 1
            or facts.cgroup is None
            or (one.cgroup, one.uid) != (facts.cgroup, facts.uid)
        ):
            break
        found.append(pid)
    return found[:_MOST_ANCESTORS]


def _sample(holder: Holder, process: Process, seen: _Seen, *, is_server: bool) -> Sample:
    """An MPS server launches nothing itself: of it that says nothing, so it is not known.

    A name alone makes none: it has clients on that GPU, and was never seen to launch.
    """
    status = holder.status
    return Sample(
        process,
        status.gpu,
        status.vram_bytes,
        status.contexts,
        status.gpu_time_s,
        None if is_server else status.launches,
        None if is_server else status.idle_s,
        holder.is_orphan,
        seen.ports,
        seen.is_paused,
        seen.is_serving,
    )


def _boot_id(proc: str) -> str:
    try:
        return Path(f"{proc}/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
