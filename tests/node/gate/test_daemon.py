# SPDX-License-Identifier: Apache-2.0
"""The gate in the life of the real daemon: put in force, kept through its death, taken away when asked."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.bpf import objects, syscall
from fairsched.bpf.ancestor import load_allowing
from fairsched.bpf.gate import GateProgram, find_programs, owner_of
from fairsched.cgroup import devices as cgroup_devices
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef
from tests.node.daemon.site import PATIENCE_S, Site, logged
from tests.node.gate.conftest import attachments
from tests.node.gate.opener import DENIED, NO_DRIVER, Nodes, Opener, Trier
from tests.support import let_run, wait_until

OpenerIn = Callable[[CgroupRef], Opener]
NVML_ONLY = {"ebpf": "off"}
"""The account of GPU time is not what is tested here, and takes seconds to compile."""
NO_GATE = ({}, {"mechanisms": {**NVML_ONLY, "device_gate": "off"}}, {"mode": "observe"})


class Gated:
    """A site, and what a test does with its gate."""

    def __init__(self, site: Site, nodes: Nodes, opener_in: OpenerIn) -> None:
        self.site, self.nodes, self._opener_in = site, nodes, opener_in
        self.owner = owner_of(site.run_dir)
        self.refs: list[CgroupRef] = []

    def configure(self, tenants: dict[str, dict[str, Any]], **top: Any) -> None:
        top = {**top, "mechanisms": {**NVML_ONLY, **top.get("mechanisms", {})}}
        self.site.configure(tenants, **top)

    def ref(self, name: str) -> CgroupRef:
        ref = tree.create(self.site.mount, f"/{self.site.top}/{name}")
        self.refs.append(ref)
        return ref

    def opener(self, name: str) -> Opener:
        return self._opener_in(self.ref(name))

    def gpu(self, minor: int) -> Path:
        return self.nodes.char(195, minor)

    def programs(self) -> list[int]:
        """Ids of our programs that are attached to the top cgroup."""
        found = find_programs(self.owner)
        ids = {program.id for program in found} & set(attachments(self.site.mount, "/gpu.slice"))
        for program in found:
            program.close()
        return sorted(ids)

    def loaded(self) -> int:
        """How many programs of ours there are, attached or not."""
        found = find_programs(self.owner)
        for program in found:
            program.close()
        return len(found)

    def status(self) -> dict[str, Any]:
        gate: dict[str, Any] = self.site.status()["gate"]
        return gate

    def wait_gate(self, state: str) -> None:
        wait_until(lambda: self.status()["state"] == state, PATIENCE_S, f"the gate is {state}")

    def close(self) -> None:
        if self.site.process is not None and self.site.process.poll() is None:
            self.site.kill()
        for ref in self.refs:
            ref.close()
        found = find_programs(self.owner)
        cgroup_devices.detach_everywhere(self.site.mount, [program.fd for program in found])
        for program in found:
            program.close()


@pytest.fixture
def gated(site: Site, nodes: Nodes, opener_in: OpenerIn) -> Iterator[Gated]:
    gated = Gated(site, nodes, opener_in)
    try:
        yield gated
    finally:
        gated.close()


# ---- in force ----


def test_each_tenant_opens_what_its_key_says_and_the_daemon_tells(gated: Gated) -> None:
    gated.configure({"one": {"gpus": [1]}, "none": {"gpus": "none"}, "all": {"gpus": "all"}, "free": {}})
    gated.site.start()
    assert gated.status()["state"] == "on"
    said = {
        name: [gated.opener(name).open(gated.gpu(minor)) for minor in (0, 1, 255)]
        for name in ("one", "none", "all", "free", "stranger")
    }
    assert said["one"] == [DENIED, NO_DRIVER, NO_DRIVER]
    assert said["none"] == [DENIED] * 3
    assert said["all"] == said["free"] == said["stranger"] == [NO_DRIVER] * 3
    wait_until(lambda: gated.status()["denied"] == {"one": 1, "none": 3}, PATIENCE_S, "refusals are counted")
    assert gated.status()["attached"] == ["/gpu.slice"]
    assert gated.status()["rules"] == 3
    assert logged(gated.site.log(), "gate=denied .*tenant=none opens=")
    assert logged(gated.site.log(), "gate=rule .*tenant=one gpus=1")
    screen = gated.site.cli("status", "--socket", str(gated.site.socket_path)).stdout
    assert "device gate: on, 3 cgroups with a rule, in /gpu.slice" in screen


def test_children_inherit_and_never_get_more(gated: Gated) -> None:
    children = {"less": {"gpus": [1]}, "more": {"gpus": [1, 5]}, "same": {}}
    gated.configure({"team": {"gpus": [0, 1], "children": children}})
    openers = {name: gated.opener(f"team/{name}") for name in (*children, "unnamed")}
    gated.site.start()
    said = {name: [one.open(gated.gpu(gpu)) for gpu in (0, 1, 5)] for name, one in openers.items()}
    assert said["less"] == said["more"] == [DENIED, NO_DRIVER, DENIED]
    assert said["same"] == said["unnamed"] == [NO_DRIVER, NO_DRIVER, DENIED]
    warnings = gated.site.status()["warnings"]
    assert any("tenants.team.children.more.gpus: GPU 5 is not among" in line for line in warnings)


def test_default_deny_denies_from_the_first_moment(gated: Gated) -> None:
    gated.configure({"old": {"gpus": [0]}}, devices={"default": "deny", "under": gated.site.top})
    gated.site.start()
    assert gated.opener("old").open(gated.gpu(0)) == NO_DRIVER
    assert gated.opener("unlisted").open(gated.gpu(0)) == DENIED
    assert gated.opener("unlisted/below").open(gated.gpu(0)) == DENIED
    wait_until(lambda: gated.status()["denied"] == {"": 2}, PATIENCE_S, "refusals are counted")


def test_a_listed_cgroup_that_is_new_need_not_wait_for_the_next_look_at_the_tree(gated: Gated) -> None:
    pods = {"cgroup": f"{gated.site.top}/pod*", "gpus": [2]}
    gated.configure({"pods": pods}, devices={"default": "deny", "under": gated.site.top})
    gated.site.start()
    took_s = []
    for number in range(4):
        pod, begin_s = gated.opener(f"pod{number}"), time.monotonic()
        wait_until(lambda pod=pod: pod.open(gated.gpu(2)) == NO_DRIVER, PATIENCE_S, "it has its GPU")
        took_s.append(time.monotonic() - begin_s)
        assert pod.open(gated.gpu(0)) == DENIED
    # who begins right after a look would wait a second for the next one, each time
    assert min(took_s[1:]) < 0.5, took_s


def test_a_gpu_that_is_not_there_is_named_and_may_come_later(gated: Gated) -> None:
    gated.configure({"one": {"gpus": ["GPU-01234567-89ab-cdef-0123-456789abcdef"]}})
    gated.site.start()
    (warning,) = [line for line in gated.site.status()["warnings"] if ".gpus" in line]
    assert warning.startswith(
        "tenants.one.gpus: there is no GPU GPU-01234567-89ab-cdef-0123-456789abcdef now"
    )
    assert gated.opener("one").open(gated.gpu(0)) == DENIED


@pytest.mark.parametrize("change", NO_GATE, ids=["no key", "mechanism off", "observe"])
def test_where_nobody_asks_for_it_nothing_is_loaded(gated: Gated, change: dict[str, Any]) -> None:
    gated.configure({"one": {"gpus": [1]} if change else {}}, **change)
    gated.site.start()
    assert gated.status()["state"] == "off"
    assert gated.loaded() == 0
    warnings = [line for line in gated.site.status()["warnings"] if "not gated" in line]
    assert bool(warnings) is bool(change)


def test_a_required_gate_that_cannot_be_is_no_start(gated: Gated) -> None:
    kept = f"fairsched-gate-test.{os.getpid()}"
    ref, fd = tree.create(gated.site.mount, f"/{kept}/a"), load_allowing()
    top = CgroupRef.open(gated.site.mount, f"/{kept}")
    try:
        exclusive = objects._AttachAttr(top.fileno(), fd, objects.CGROUP_DEVICE, 0)
        syscall.call(objects.PROG_ATTACH, exclusive)
        tenant = {"one": {"cgroup": f"{kept}/a", "gpus": [1]}}
        gated.configure(tenant, mechanisms={"device_gate": "required"})
        gated.site.launch()
        assert gated.site.process is not None
        assert gated.site.process.wait(PATIENCE_S) == 3
        assert f"/{kept}: cannot attach a device program" in gated.site.log()
        gated.configure(tenant)
        gated.site.start()
        assert gated.status()["state"] == "failed"
        cgroup_devices.detach(top, fd)
        gated.wait_gate("on")
    finally:
        gated.site.kill()
        cgroup_devices.detach(top, fd)
        os.close(fd)
        for one in find_programs(gated.owner):
            cgroup_devices.detach(top, one.fd)
            one.close()
        for one_ref in (ref, top):
            tree.remove(gated.site.mount, one_ref)
            one_ref.close()


def test_a_daemon_below_a_cgroup_it_would_close_to_itself_does_not_start(gated: Gated) -> None:
    ref = gated.ref("daemon/inside")
    gated.configure({}, devices={"default": "deny", "under": f"{gated.site.top}/daemon"})
    gated.site.launch()
    tree.place(ref, gated.site.pid)
    assert gated.site.process is not None
    assert gated.site.process.wait(PATIENCE_S) == 2
    assert "devices.under: the daemon itself runs in" in gated.site.log()


# ---- while the daemon comes and goes ----


def test_no_open_slips_through_while_the_daemon_is_killed_and_started_again(gated: Gated) -> None:
    gated.configure({"one": {"gpus": [1]}})
    gated.site.start()
    before = gated.programs()
    trier = Trier(gated.ref("one"), gated.gpu(0))
    for _ in range(2):
        gated.site.kill()
        gated.site.start()
    gated.site.stop()
    gated.site.start()
    tried, let_through = trier.end()
    assert gated.programs() == before
    assert (tried > 1000, let_through) == (True, 0)
    assert logged(gated.site.log(), "gate=taken_over program=.* rules=1")
    assert gated.opener("one").open(gated.gpu(1)) == NO_DRIVER


def _pretend_another_build(program: GateProgram) -> None:
    head = program.head()
    head.build[0] ^= 1
    syscall.update(program._fds["gate_head"], ctypes.c_uint32(0), head)


def test_a_successor_of_another_build_takes_its_place_in_one_step(gated: Gated) -> None:
    gated.configure({"one": {"gpus": [1]}})
    gated.site.start()
    (before,) = gated.programs()
    (program,) = find_programs(gated.owner)
    _pretend_another_build(program)
    program.close()
    trier = Trier(gated.ref("one"), gated.gpu(0))
    gated.site.kill()
    gated.site.start()
    tried, let_through = trier.end()
    (after,) = gated.programs()
    assert after != before
    assert (tried > 1000, let_through) == (True, 0)
    assert logged(gated.site.log(), f"gate=replaced cgroup=/gpu.slice program={after}")


def test_what_changed_while_no_daemon_was_there_is_put_right(gated: Gated) -> None:
    gated.configure({"one": {"gpus": [1]}, "two": {"gpus": [2]}})
    gated.site.start()
    gated.site.kill()
    (program,) = find_programs(gated.owner)
    elsewhere = tree.create(gated.site.mount, f"/fairsched-gate-test.{os.getpid()}")
    try:
        cgroup_devices.attach(elsewhere, program.fd)
        program.set_rule(elsewhere.id, [])
        gated.configure({"one": {"gpus": [3]}, "two": {}})
        gated.site.start()
        assert attachments(gated.site.mount, elsewhere.path) == []
        assert {gpus for gpus, _ in program.rules().values()} == {frozenset({3})}
        assert gated.programs() == [program.id]
        assert gated.opener("two").open(gated.gpu(0)) == NO_DRIVER
    finally:
        cgroup_devices.detach(elsewhere, program.fd)
        program.close()
        tree.remove(gated.site.mount, elsewhere)
        elsewhere.close()


def test_a_reload_changes_rules_and_takes_the_gate_away(gated: Gated) -> None:
    gated.configure({"one": {}})
    gated.site.start()
    opener = gated.opener("one")
    assert opener.open(gated.gpu(0)) == NO_DRIVER
    gated.configure({"one": {"gpus": [1]}})
    gated.site.ask("reload")
    wait_until(lambda: opener.open(gated.gpu(0)) == DENIED, PATIENCE_S, "the gate closes")
    gated.configure({"one": {"gpus": [0]}})
    gated.site.ask("reload")
    wait_until(lambda: opener.open(gated.gpu(0)) == NO_DRIVER, PATIENCE_S, "the rule changes")
    assert opener.open(gated.gpu(1)) == DENIED
    gated.configure({"one": {"gpus": [0]}}, mode="observe")
    gated.site.ask("reload")
    wait_until(lambda: opener.open(gated.gpu(1)) == NO_DRIVER, PATIENCE_S, "the gate opens")
    wait_until(lambda: gated.loaded() == 0, PATIENCE_S, "nothing of it is left")


def test_dry_run_touches_nothing_of_it(gated: Gated) -> None:
    gated.configure({"one": {"gpus": [1]}})
    gated.site.start("--dry-run")
    assert gated.status() | {"state": "off", "reason": "--dry-run"} == gated.status()
    assert gated.programs() == []
    gated.site.stop()
    gated.site.start()
    before = gated.programs()
    gated.site.stop()
    gated.configure({"one": {}})
    gated.site.start("--dry-run")
    assert gated.programs() == before != []


# ---- the way out ----


def test_a_clean_stop_keeps_the_gate_and_release_takes_it_away(gated: Gated) -> None:
    gated.configure({"one": {"gpus": [1]}})
    gated.site.start()
    opener = gated.opener("one")
    assert gated.site.stop() == 0
    options = ("--run-dir", str(gated.site.run_dir))
    assert gated.site.cli("release", "--keep-gate", *options).returncode == 0
    assert opener.open(gated.gpu(0)) == DENIED
    done = gated.site.cli("release", *options)
    assert done.returncode == 0
    assert "device gate removed: /gpu.slice" in done.stdout
    assert opener.open(gated.gpu(0)) == NO_DRIVER
    again = gated.site.cli("release", "--json", *options)
    assert (again.returncode, '"gates": []' in again.stdout) == (0, True)
    wait_until(lambda: gated.loaded() == 0, PATIENCE_S, "nothing of it is left")


def test_release_works_when_all_of_ours_was_killed_and_the_run_directory_is_gone(gated: Gated) -> None:
    gated.configure({"one": {"gpus": [1]}})
    gated.site.start()
    opener = gated.opener("one")
    gated.site.kill()
    wait_until(lambda: not gated.site.helpers_left(), PATIENCE_S, "the helpers leave")
    let_run(0.1)
    assert opener.open(gated.gpu(0)) == DENIED
    shutil.rmtree(gated.site.run_dir)
    done = gated.site.cli("release", "--run-dir", str(gated.site.run_dir))
    assert done.returncode == 0, done.stderr
    assert opener.open(gated.gpu(0)) == NO_DRIVER


def test_release_leaves_the_gate_of_another_daemon_alone(gated: Gated) -> None:
    gated.configure({"one": {"gpus": [1]}})
    gated.site.start()
    gated.site.stop()
    done = gated.site.cli("release", "--run-dir", str(gated.site.run_dir) + "-other")
    assert done.returncode == 0
    assert gated.opener("one").open(gated.gpu(0)) == DENIED


def test_a_thousand_tenants_are_gated_and_a_change_is_one_rule(gated: Gated) -> None:
    names = [f"t{index}" for index in range(1000)]
    gated.configure({name: {"gpus": [index % 8]} for index, name in enumerate(names)})
    gated.site.start()
    assert gated.status()["rules"] == 1000
    assert len(gated.programs()) == 1
    assert gated.opener("t999").open(gated.gpu(999 % 8)) == NO_DRIVER
    assert gated.opener("t999").open(gated.gpu(0)) == DENIED
