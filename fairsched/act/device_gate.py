# SPDX-License-Identifier: Apache-2.0
"""Keeps the device gate in force: which cgroup may open which GPU, as the configuration says.

Problem: what denies an open must be there before the first open and must not blink while a daemon is replaced, and
yet nothing of it may stay where nobody asks for it any more.

Approach: one program per top cgroup, rules by cgroup id in a map (driver/gate.py says which). What is attached
outlives the daemon: at the start ours is found by asking the kernel, its maps are taken over where it was made of the
same source, else its successor is filled first and takes its place in one step. Rules change one by one, each in one
step. A daemon that ends leaves the gate as it is; ``fairsched release`` takes it away, and so does a daemon whose
configuration asks for none. In dry_run nothing is touched.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from fairsched.base.printable import word
from fairsched.bpf import abi
from fairsched.bpf.gate import GateLoad, GateProgram, build_of_source, find_programs, owner_of
from fairsched.cgroup import tree as cgroup_tree
from fairsched.cgroup.newborn import Newborn
from fairsched.cgroup.path import Mount
from fairsched.config import CgroupOwners, Config
from fairsched.config.settings import Settings
from fairsched.driver import gate
from fairsched.driver.in_force import GateInForce
from fairsched.driver.inventory import read_devices, signature
from fairsched.errors import ConfigError, FairschedError, HostUnsupported
from fairsched.observe.tree import Tree
from fairsched.protocol.status import GateState, GateStatus

_VERIFY_NS = 1_000_000_000
_READ_AGAIN_NS = 60_000_000_000
_SAY_AGAIN_NS = 60_000_000_000

logger = logging.getLogger(__name__)


class DeviceGate:
    """Keeps the rules in force.

    Call :meth:`refresh` often and whenever :meth:`fileno` is readable; :meth:`close` leaves in force what is.
    """

    def __init__(self, mount: Mount, tree: Tree, settings: Settings, *, is_dry_run: bool) -> None:
        """Puts the gate in force, if it is asked for. Raises HostUnsupported where it is required and cannot be."""
        self._mount, self._tree, self._settings = mount, tree, settings
        self._is_dry_run = is_dry_run
        self._mechanism = settings.config.mechanisms.device_gate
        self._owner = owner_of(settings.config.run_dir)
        self._in_force: GateInForce | None = None
        self._load: GateLoad | None = None
        self._old: list[GateProgram] = []
        """Of earlier daemons, to be taken over or replaced."""
        self._left: dict[int, tuple[frozenset[int], bool]] = {}
        """Rules of earlier daemons on cgroups whose names are not known yet: matches by name come a moment later."""
        self._rules = gate.GateRules({}, {})
        self._newborn = Newborn(mount)
        self._born: dict[int, str] = {}
        self._config: Config | None = None
        self._owners: CgroupOwners | None = None
        self._devices, self._signature = read_devices(), signature()
        self._seen: object = None
        """What the rules were made of."""
        self._next_verify_ns = 0
        self._next_read_ns = time.monotonic_ns() + _READ_AGAIN_NS
        self._error: str | None = None
        self._is_refused = False
        """This host cannot load it; it is tried again under another configuration."""
        self._denied: dict[str, int] = {}
        self._denied_total = 0
        self._denied_by_cgroup: dict[int, int] = {}
        self._say_again_ns: dict[str, int] = {}
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    # ---- start and end ----

    def _start(self) -> None:
        config = self._settings.config
        self._find_old()
        if not self._is_wanted(config):
            self.refresh()
            return
        for program in sorted(self._old, key=lambda one: one.id):
            self._left.update(program.rules())
        self._take_in(config, {node.id: node.path for node in cgroup_tree.walk(self._mount)})
        while self._load is not None:
            self._poll_load(1.0)
        if self._error is not None and self._mechanism == "required":
            raise HostUnsupported(
                f"mechanisms.device_gate is required, but {self._error}", remedy="fairsched doctor"
            )

    def _find_old(self) -> None:
        try:
            self._old = find_programs(self._owner)
        except OSError as error:
            if self._is_wanted(self._settings.config):
                logger.warning("gate=unknown what='what earlier daemons left' error=%r", error.strerror)
        if self._old and self._is_dry_run:
            logger.info("gate=left programs=%d reason=--dry-run", len(self._old))
            for program in self._old:
                program.close()
            self._old = []

    def _refuse_own_cgroup(self, config: Config) -> None:
        own = cgroup_tree.cgroup_path_of("self", self._mount) or "/"
        if config.devices.default == "deny":
            for path in config.devices.under:
                if f"{own}/".startswith(f"/{path}/"):
                    raise ConfigError(
                        f"the daemon itself runs in {own}: it would lose the GPUs",
                        file=self._settings.display_path or "defaults",
                        key="devices.under",
                        remedy="run the daemon outside, as the systemd service does",
                    )

    def close(self) -> None:
        """Give descriptors back. What is attached stays: see the module."""
        for program in self._old:
            program.close()
        self._old = []
        if self._in_force is not None:
            self._in_force.close()
        if self._load is not None:
            self._load.close()
        self._in_force = self._load = None
        self._newborn.close()

    # ---- what is so ----

    def fileno(self) -> int:
        """Readable when a cgroup was made that may need a rule."""
        return self._newborn.fileno()

    def _is_wanted(self, config: Config) -> bool:
        return (
            config.mode == "enforce"
            and self._mechanism != "off"
            and not self._is_dry_run
            and gate.is_asked_for(config)
        )

    def status(self) -> GateStatus:
        """For ``fairsched status``."""
        config = self._settings.config
        if not self._is_wanted(config):
            return GateStatus(GateState.OFF, self._why_off(config))
        attached = tuple(sorted(self._in_force.attached.values())) if self._in_force is not None else ()
        state, reason = GateState.ON, None
        if self._error is not None:
            state, reason = GateState.FAILED, self._error
        elif not attached:
            state = GateState.WAITING
            reason = "being compiled" if self._load is not None else "no cgroup is there that has a rule"
        return GateStatus(
            state=state,
            reason=reason,
            rules=len(self._rules.by_cgroup),
            attached=attached,
            denied=dict(self._denied),
            blind=None if self._in_force is None else int(self._in_force.program.head().blind),
            warnings=self._rules.warnings,
        )

    def _why_off(self, config: Config) -> str:
        if not gate.is_asked_for(config):
            return "nothing in the configuration asks for it"
        if self._mechanism == "off":
            return "mechanisms.device_gate is off"
        return "--dry-run" if self._is_dry_run else f"mode is {config.mode}"

    # ---- what is to be ----

    def refresh(self) -> None:
        """Bring the gate in line with configuration, cgroups and devices. Cheap when nothing has changed."""
        try:
            self._refresh(self._settings.config)
        except (FairschedError, OSError) as error:
            self._note([str(error)])

    def _refresh(self, config: Config) -> None:
        if not self._is_wanted(config):
            self._take_down()
            return
        born, paths, now_ns = self._newborn.read(), self._tree.paths, time.monotonic_ns()
        if paths is None:
            return  # the tree is being looked at anew
        if now_ns >= self._next_verify_ns:
            self._next_verify_ns = now_ns + _VERIFY_NS
            self._look_at_devices(now_ns)
            self._count_denied(now_ns)
            self._put_in_force()
        seen = (config, self._tree.changes, self._devices)
        if born or seen != self._seen:
            self._seen = seen
            self._take_in(config, {**self._walk_born(born, paths), **paths})
        if self._load is not None:
            self._poll_load(0.0)

    def _walk_born(self, directories: set[str], paths: Mapping[int, str]) -> Mapping[int, str]:
        """Cgroups that the tree has not come across yet; kept until it has, or they are gone."""
        for directory in directories:
            self._born.update((node.id, node.path) for node in cgroup_tree.walk(self._mount, directory))
        self._born = {
            cgroup_id: path
            for cgroup_id, path in self._born.items()
            if cgroup_id not in paths and cgroup_tree.is_at(self._mount, path, cgroup_id)
        }
        return self._born

    def _look_at_devices(self, now_ns: int) -> None:
        now = signature()
        if now != self._signature or now_ns >= self._next_read_ns:
            self._next_read_ns = now_ns + _READ_AGAIN_NS
            self._signature, self._devices = now, read_devices()

    def _take_in(self, config: Config, paths: Mapping[int, str]) -> None:
        """What is to be, from what there is; and as much of it as can be done now."""
        if config is not self._config:
            self._refuse_own_cgroup(config)
            self._config, self._owners = config, CgroupOwners(config)
            self._is_refused = False
        assert self._owners is not None
        before = self._rules.warnings
        self._rules = gate.choose_rules(
            paths, self._owners, config, self._devices, abi.MAX_GATE_LEVELS, self._left
        )
        self._left = {
            cgroup_id: rule
            for cgroup_id, rule in self._left.items()
            if cgroup_id in paths and self._owners.is_waiting(paths[cgroup_id])
        }
        for line in self._rules.warnings:
            if line not in before:
                logger.warning("gate=warning what=%r", line)
        self._newborn.watch(gate.places_to_watch(paths, self._owners, config))
        if self._in_force is None and self._load is None and not self._is_refused:
            self._take_over()
        self._put_in_force()

    def _take_over(self) -> None:
        """What an earlier daemon has left, where it is the same program (the newest of several); or load it."""
        build = build_of_source()
        same = [program for program in self._old if bytes(program.head().build) == build]
        if not same:
            self._load = GateLoad()
            return
        program = max(same, key=lambda one: one.id)
        self._old.remove(program)
        logger.info("gate=taken_over program=%d rules=%d", program.id, len(program.rules()))
        self._use(program)

    def _use(self, program: GateProgram) -> None:
        self._in_force, self._old = GateInForce(self._mount, program, self._old), []

    def _poll_load(self, timeout_s: float) -> None:
        assert self._load is not None
        try:
            program = self._load.poll(timeout_s)
        except FairschedError as error:
            self._load, self._is_refused = None, True
            self._note([str(error)])
            return
        if program is not None:
            self._load = None
            program.sign(self._owner)
            self._use(program)
            self._put_in_force()

    def _put_in_force(self) -> None:
        if self._in_force is not None:
            self._note(self._in_force.put(self._rules, self._devices))

    def _note(self, errors: list[str]) -> None:
        error = "; ".join(errors) or None
        if error is not None and error != self._error:
            logger.error("gate=failed error=%r", error)
        elif error is None and self._error is not None:
            logger.info("gate=recovered from=%r", self._error)
        self._error = error

    def _take_down(self) -> None:
        """Nobody asks for it: nothing of ours stays."""
        if self._load is not None:
            self._load.close()
        if self._old and self._in_force is None:
            self._use(self._old.pop())
        if self._in_force is not None:
            self._in_force.take_down(self._why_off(self._settings.config))
        self._in_force = self._load = self._config = self._error = self._seen = None
        self._is_refused = False
        self._rules = gate.GateRules({}, {})
        self._newborn.watch({})

    def remembered_tenants(self) -> set[str]:
        return {*self._denied, *self._say_again_ns} - {""}  # which stands for all that are no tenant's

    def forget_tenants(self, names: Collection[str]) -> None:
        for name in names:
            self._denied.pop(name, None)
            self._say_again_ns.pop(name, None)

    def _count_denied(self, now_ns: int) -> None:
        """Who was refused since the last look; a tenant that goes on trying is named once a minute."""
        if self._in_force is None:
            return
        program = self._in_force.program
        total = int(program.head().denied)
        if total == self._denied_total:
            return
        self._denied_total = total
        for cgroup_id, rule in self._rules.by_cgroup.items():
            count = program.denied(cgroup_id)
            new = count - self._denied_by_cgroup.get(cgroup_id, 0)
            self._denied_by_cgroup[cgroup_id] = count
            if new <= 0:
                continue
            name = rule.tenant or ""
            self._denied[name] = self._denied.get(name, 0) + new
            if now_ns >= self._say_again_ns.get(name, 0):
                self._say_again_ns[name] = now_ns + _SAY_AGAIN_NS
                names = (word(rule.path), word(rule.tenant or "-"))
                logger.warning("gate=denied cgroup=%s tenant=%s opens=%d", *names, new)
        self._denied_by_cgroup = {key: self._denied_by_cgroup[key] for key in self._rules.by_cgroup}
