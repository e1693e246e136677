# SPDX-License-Identifier: Apache-2.0
"""Puts the rules of the device gate in force: into the maps, and the program onto the top cgroups.

Everything is done so that no moment is worse than before or after it: rules before the program that reads them, each
rule in one step, inner cgroups before outer ones, a successor in its predecessor's place.
"""

from __future__ import annotations

import contextlib
import logging

from fairsched.base.printable import word
from fairsched.bpf.gate import GateProgram
from fairsched.cgroup import devices as cgroup_devices
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.driver.gate import GateRules
from fairsched.driver.inventory import Devices
from fairsched.errors import CgroupGone, FairschedError

_MANY = 20
"""More changes at once are said in one line."""

logger = logging.getLogger(__name__)


class GateInForce:
    """One program, and the older ones it takes the place of. Closing it leaves attached what is."""

    def __init__(self, mount: Mount, program: GateProgram, old: list[GateProgram]) -> None:
        """Takes the programs over."""
        self._mount = mount
        self.program = program
        self._old = old
        self._written: dict[int, tuple[frozenset[int], bool]] | None = None
        """What is in the map; None: not known."""
        self._devices: Devices | None = None
        self._is_swept = False
        """Nothing of ours is anywhere but in ``attached``."""
        self.attached: dict[int, str] = {}
        """Path by id of the cgroups that have the program."""

    def put(self, rules: GateRules, devices: Devices) -> list[str]:
        """Make it so; what could not be done, in words. Does little when it is so."""
        try:
            if devices != self._devices:
                self.program.set_devices(devices.majors, devices.caps)
                self._devices = devices
            self._write(rules)
        except OSError as error:
            return [f"the rules cannot be written: {error.strerror}"]
        before, errors = self.attached, []
        self.attached = {}
        for cgroup_id, path in rules.tops.items():
            try:
                with CgroupRef.open(self._mount, path) as ref:
                    if ref.id == cgroup_id:  # else it was made again: the next look finds it
                        self._attach(ref, is_known=cgroup_id in before)
            except CgroupGone:
                continue
            except FairschedError as error:
                errors.append(f"{error}; {error.remedy}".rstrip("; "))
        if not errors and not (self._is_swept and before.keys() <= self.attached.keys()):
            self._sweep()
        return errors

    def _write(self, rules: GateRules) -> None:
        there = self.program.rules() if self._written is None else self._written
        wanted = {cgroup_id: (rule.gpus, rule.is_all) for cgroup_id, rule in rules.by_cgroup.items()}
        if there == wanted:
            self._written = wanted
            return
        self._written = None
        changed = [
            rule for cgroup_id, rule in rules.by_cgroup.items() if there.get(cgroup_id) != wanted[cgroup_id]
        ]
        for rule in sorted(changed, key=lambda rule: -rule.path.count("/")):
            self.program.set_rule(rule.cgroup_id, rule.gpus, is_all=rule.is_all)
        gone = there.keys() - wanted.keys()
        # what allows least goes first: it may lie around one that allows more
        for cgroup_id in sorted(gone, key=lambda one: (there[one][1], len(there[one][0]))):
            self.program.drop_rule(cgroup_id)
        self._written = wanted
        if len(changed) <= _MANY:
            for rule in changed:
                names = (word(rule.path), word(rule.tenant or "-"))
                logger.info("gate=rule cgroup=%s tenant=%s gpus=%s", *names, rule)
        if len(changed) > _MANY or gone:
            logger.info("gate=rules changed=%d removed=%d total=%d", len(changed), len(gone), len(wanted))

    def _attach(self, ref: CgroupRef, *, is_known: bool) -> None:
        is_replaced = any(cgroup_devices.replace(ref, self.program.fd, old.fd) for old in self._old)
        is_new = cgroup_devices.attach(ref, self.program.fd)
        self.attached[ref.id] = ref.path
        if is_replaced or is_new or not is_known:
            how = "replaced" if is_replaced else "attached" if is_new else "kept"
            logger.info("gate=%s cgroup=%s program=%d", how, word(ref.path), self.program.id)

    def _sweep(self) -> None:
        """Where nobody needs it any more it goes; only when all is well, as an old gate is better than none."""
        old = [one.fd for one in self._old]
        found = cgroup_devices.detach_everywhere(self._mount, old)
        found += cgroup_devices.detach_everywhere(self._mount, [self.program.fd], keep=self.attached.keys())
        for path in found:
            logger.info("gate=detached cgroup=%s", word(path))
        self._is_swept = True
        for one in self._old:
            one.close()
        self._old = []

    def take_down(self, reason: str) -> None:
        """Detach it everywhere, and close. Raises KernelRefused."""
        fds = [self.program.fd, *(one.fd for one in self._old)]
        for path in cgroup_devices.detach_everywhere(self._mount, fds):
            logger.info("gate=detached cgroup=%s reason=%r", word(path), reason)
        self.close()

    def close(self) -> None:
        """Idempotent."""
        for one in (self.program, *self._old):
            with contextlib.suppress(OSError):
                one.close()
        self._old = []
