# SPDX-License-Identifier: Apache-2.0
"""The step mig: real NVML calls on the simulated GPU, and the label of a MIG manager on a real HTTPS server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from fairsched.companion.escalate.mig import (
    CONFIG_LABEL,
    STATE_LABEL,
    LabelMigStep,
    LabelSettings,
    MigSettings,
    NvmlMigStep,
)
from fairsched.companion.escalate.mig_nvml import MigError, MigGpu, MigHalfDone, Profile, profile_name, words
from fairsched.companion.escalate.model import Kind, Outcome, Result
from fairsched.companion.escalate.steps import carry_out
from fairsched.k8s.client import KubeClient
from fairsched.protocol.status import GpuStatus, StatusReport, TenantState
from fairsched.simgpu import PRESETS, GpuSpec, SimHost
from tests.unit.companion.escalate.api_server import NODE, ApiServer, refuse
from tests.unit.companion.escalate.reports import GPU, OTHER_GPU, given_up_after, order, report, tenant
from tests.unit.companion.escalate.test_evict import Clock

PROFILES = (
    Profile(19, "1g.5gb", 1, 7),
    Profile(14, "2g.10gb", 2, 3),
    Profile(9, "3g.20gb", 3, 2),
    Profile(0, "7g.40gb", 7, 1),
)
TWO_HALVES = ("3g.20gb", "3g.20gb")
FREE = report([tenant("chat", state=TenantState.IDLE, gpus=())])


def gpu(index: int = 0, **more: Any) -> MigGpu:
    known = MigGpu(index, (GPU, OTHER_GPU)[index], True, PROFILES, ("7g.40gb",))
    return replace(known, **more)


class Driver:
    """NVML as a list of GPUs, for what the simulated GPU cannot be made to do."""

    def __init__(self, *gpus: MigGpu, error: MigError | None = None) -> None:
        self.now = {one.uuid: one for one in gpus}
        self.error = error

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Any]:
        yield self

    def gpus(self) -> list[MigGpu]:
        return list(self.now.values())

    def resplit(self, one: MigGpu, layout: Any) -> None:
        if self.error is not None:
            raise self.error
        self.now[one.uuid] = replace(one, layout=tuple(layout))


def take(
    driver: Driver,
    settings: MigSettings,
    seen: StatusReport | None = FREE,
    *,
    check: Callable[[], None] = lambda: None,
    **more: Any,
) -> Result:
    return carry_out(NvmlMigStep(settings, driver), order("mig", **more), seen, lambda undo: None, check)


def test_the_free_gpu_is_split_and_put_back() -> None:
    driver = Driver(gpu(), gpu(1))
    done = take(driver, MigSettings(TWO_HALVES))
    assert done.outcome is Outcome.DONE
    assert done.detail == f"GPU 0 ({GPU}) is 2 x 3g.20gb, was 1 x 7g.40gb"
    assert driver.now[GPU].layout == TWO_HALVES and driver.now[OTHER_GPU].layout == ("7g.40gb",)
    back = take(driver, MigSettings(TWO_HALVES), kind=Kind.ROLLBACK, undo=done.undo)
    assert (back.outcome, back.detail) == (Outcome.ROLLED_BACK, "GPU 0 is 1 x 7g.40gb again")
    assert driver.now[GPU].layout == ("7g.40gb",)


def test_a_gpu_with_a_tenant_or_a_process_on_it_is_never_split() -> None:
    used = report([tenant("chat", on=(GPU,))])
    driver = Driver(gpu(), gpu(1, pids=(4711,)))
    result = take(driver, MigSettings(TWO_HALVES), used)
    assert result.outcome is Outcome.SKIPPED
    assert result.detail == "GPU 0 is used by chat; GPU 1 is used by 1 process"
    held = report([tenant("chat", gpus=(), contexts_by_gpu={GPU: 1})])
    assert take(Driver(gpu()), MigSettings(TWO_HALVES), held).detail == "GPU 0 is used by chat"
    assert "not told" in take(Driver(gpu()), MigSettings(TWO_HALVES), None).detail


def test_a_tenant_on_an_instance_is_on_the_gpu() -> None:
    seen = report([tenant("chat", on=("MIG-1",))])
    seen = replace(seen, gpus=(GpuStatus("MIG-1", 0, parent_uuid=GPU, gpu_instance=1, compute_instance=0),))
    assert take(Driver(gpu()), MigSettings(TWO_HALVES), seen).detail == "GPU 0 is used by chat"


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (gpu(is_enabled=False), "MIG mode is off"),
        (gpu(layout=TWO_HALVES), "is 2 x 3g.20gb already"),
        (gpu(profiles=PROFILES[:1]), "has no profile 3g.20gb, but 1g.5gb"),
    ],
)
def test_a_gpu_that_cannot_be_split_so_says_why(one: MigGpu, says: str) -> None:
    result = take(Driver(one), MigSettings(TWO_HALVES))
    assert result.outcome is Outcome.SKIPPED and says in result.detail


def test_only_the_gpus_that_are_named() -> None:
    driver = Driver(gpu(), gpu(1))
    assert take(driver, MigSettings(TWO_HALVES, (OTHER_GPU,))).detail.startswith("GPU 1 ")
    assert take(Driver(gpu(), gpu(1)), MigSettings(TWO_HALVES, (1,))).detail.startswith("GPU 1 ")
    assert take(Driver(gpu()), MigSettings(TWO_HALVES, (5,))).outcome is Outcome.SKIPPED


def test_a_process_that_came_since_the_plan_was_made_keeps_its_gpu() -> None:
    driver = Driver(gpu())
    step = NvmlMigStep(MigSettings(TWO_HALVES), driver)

    def somebody_comes(undo: Any) -> None:
        driver.now[GPU] = gpu(pids=(4711,))

    result = carry_out(step, order("mig"), FREE, somebody_comes)
    assert result.outcome is Outcome.SKIPPED and driver.now[GPU].layout == ("7g.40gb",)


def test_a_split_is_not_put_back_under_a_tenant_or_over_somebody_elses() -> None:
    driver = Driver(gpu())
    done = take(driver, MigSettings(TWO_HALVES))
    used = report([tenant("chat", on=(GPU,))])
    later = take(driver, MigSettings(TWO_HALVES), used, kind=Kind.ROLLBACK, undo=done.undo)
    assert later.outcome is Outcome.SKIPPED and driver.now[GPU].layout == TWO_HALVES
    driver.now[GPU] = gpu(layout=("1g.5gb",) * 7)
    left = take(driver, MigSettings(TWO_HALVES), kind=Kind.ROLLBACK, undo=done.undo)
    assert left.outcome is Outcome.ROLLED_BACK and "left alone" in left.detail
    assert driver.now[GPU].layout == ("1g.5gb",) * 7
    driver.now.clear()
    gone = take(driver, MigSettings(TWO_HALVES), kind=Kind.ROLLBACK, undo=done.undo)
    assert "is gone" in gone.detail


def test_whether_a_failure_left_something_behind_is_told() -> None:
    clean = take(Driver(gpu(), error=MigError("Insufficient Resources")), MigSettings(TWO_HALVES))
    assert clean.outcome is Outcome.FAILED and not clean.is_in_force
    half = take(Driver(gpu(), error=MigHalfDone("neither")), MigSettings(TWO_HALVES))
    assert half.outcome is Outcome.FAILED and half.is_in_force


@pytest.mark.parametrize(
    ("slices", "memory_mib", "total_mib", "name"),
    [
        (1, 4864, 40960, "1g.5gb"),
        (3, 19968, 40960, "3g.20gb"),
        (7, 40192, 40960, "7g.40gb"),
        (1, 9728, 81920, "1g.10gb"),
        (2, 11968, 24576, "2g.12gb"),
    ],
)
def test_profiles_have_the_names_that_nvidia_smi_gives_them(
    slices: int, memory_mib: int, total_mib: int, name: str
) -> None:
    assert profile_name(slices, memory_mib, total_mib) == name


def test_layouts_in_words() -> None:
    assert words(("3g.20gb", "2g.10gb", "2g.10gb")) == "1 x 3g.20gb + 2 x 2g.10gb"
    assert words(()) == "nothing"


SPLIT = """
import json, sys, pynvml
from fairsched.companion.escalate.mig_nvml import MigDriver, MigError
with MigDriver() as driver:
    said = []
    before = driver.gpus()[0]
    pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1)
    for layout in json.loads(sys.argv[1]):
        try:
            driver.resplit(driver.gpus()[0], layout)
            said.append("done")
        except MigError as error:
            said.append(str(error))
        said.append(list(driver.gpus()[0].layout))
    one = driver.gpus()[0]
    print(json.dumps([before.is_enabled, [p.name for p in one.profiles], [p.most for p in one.profiles], said]))
"""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="as the real one, the stand-in lets root split: sudo make test-unit"
)


def python(host: SimHost, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **host.env()}
    return subprocess.run([sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True)


@needs_root
def test_a_simulated_gpu_is_split_and_split_anew_by_real_nvml_calls() -> None:
    layouts = [["7g.40gb"], ["3g.20gb", "3g.20gb"], ["1g.5gb"] * 7, ["1g.5gb", "2g.10gb", "4g.20gb"], []]
    with SimHost([GpuSpec(vram_bytes=40 << 30)]) as host:
        done = python(host, SPLIT, json.dumps(layouts))
        assert done.returncode == 0, done.stderr
        was_enabled, names, most, said = json.loads(done.stdout)
        assert not was_enabled
        assert names == ["1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"] and most == [7, 3, 2, 1, 1]
        assert said[::2] == ["done"] * 5
        assert [sorted(layout) for layout in said[1::2]] == [sorted(layout) for layout in layouts]


@needs_root
def test_a_layout_that_does_not_fit_leaves_the_old_one_in_place() -> None:
    with SimHost([GpuSpec(vram_bytes=40 << 30)]) as host:
        done = python(host, SPLIT, json.dumps([["3g.20gb", "2g.10gb"], ["4g.20gb", "4g.20gb"]]))
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)[3]
        assert said[0] == "done" and said[1] == ["3g.20gb", "2g.10gb"]
        assert "Insufficient Resources" in said[2] and said[3] == ["3g.20gb", "2g.10gb"]


@needs_root
def test_a_gpu_in_use_cannot_be_split() -> None:
    with SimHost([GpuSpec(vram_bytes=40 << 30)]) as host:
        python(host, SPLIT, json.dumps([["7g.40gb"]]))
        worker = host.spawn(PRESETS["decode"])
        imported = "from fairsched.companion.escalate.mig_nvml import MigDriver\n"
        code = imported + "with MigDriver() as d: print(d.gpus()[0].pids)"
        assert python(host, code).stdout.strip() == f"({worker.pid},)"
        forced = imported + "with MigDriver() as d: d.resplit(d.gpus()[0], ['3g.20gb'])"
        done = python(host, forced)
        assert done.returncode != 0 and "In use by another client" in done.stderr


class Manager:
    """NVIDIA's MIG manager, as far as a node's labels show it: it acts when somebody looks."""

    def __init__(self, api: ApiServer, ends: str = "success", looks: int = 2, *, keep: bool = False) -> None:
        """`keep`: the labels that are there."""
        if not keep:
            api.nodes[NODE]["metadata"]["labels"] = {CONFIG_LABEL: "all-1g.10gb", STATE_LABEL: "success"}
        self._left = looks
        real = api.nodes[NODE]["metadata"]

        def act(now_s: float) -> None:
            if real["labels"].get(STATE_LABEL) == "pending":
                self._left -= 1
                if self._left <= 0:
                    is_wanted = real["labels"].get(CONFIG_LABEL) == "all-3g.40gb"
                    real["labels"][STATE_LABEL] = ends if is_wanted else "success"

        self.act = act


def by_label(
    client: KubeClient,
    manager: Manager | None,
    seen: StatusReport | None = FREE,
    *,
    driver: Any = None,
    announce: Any = lambda undo: None,
    check: Callable[[], None] = lambda: None,
    **more: Any,
) -> tuple[Result, Clock]:
    clock = Clock()

    def nap(for_s: float) -> None:
        clock.pass_by(for_s)
        if manager is not None:
            manager.act(clock.now_s)

    settings = LabelSettings(NODE, "all-3g.40gb", wait_s=20.0)
    nobody = Driver(gpu(), gpu(1, is_enabled=False))
    step = LabelMigStep(lambda: client, settings, driver=driver or nobody, sleep=nap, clock=clock)
    return carry_out(step, order("mig", **more), seen, announce, check), clock


def test_the_mig_manager_is_asked_by_its_label_and_waited_for(api: ApiServer, client: KubeClient) -> None:
    done, clock = by_label(client, Manager(api, looks=5))
    assert (done.outcome, done.detail) == (Outcome.DONE, "node1 is split as all-3g.40gb, was all-1g.10gb")
    assert clock.now_s == 5.0, "the success of before was not taken for the new one"
    back, _ = by_label(
        client, Manager(api), kind=Kind.ROLLBACK, undo={**(done.undo or {}), "set": "all-7g.80gb"}
    )
    assert back.outcome is Outcome.ROLLED_BACK and "left alone" in back.detail
    manager = Manager(api)
    labels = api.nodes[NODE]["metadata"]["labels"]
    labels[CONFIG_LABEL] = "all-3g.40gb"
    back, _ = by_label(client, manager, kind=Kind.ROLLBACK, undo=done.undo)
    assert back.detail == f"{CONFIG_LABEL} of node1 is all-1g.10gb again"
    assert labels == {CONFIG_LABEL: "all-1g.10gb", STATE_LABEL: "success"}


@pytest.mark.parametrize(("ends", "says"), [("failed", "failed to apply"), ("pending", "after 20 s")])
def test_a_manager_that_fails_gets_the_old_label_back(
    api: ApiServer, client: KubeClient, ends: str, says: str
) -> None:
    result, _ = by_label(client, Manager(api, ends))
    assert result.outcome is Outcome.FAILED and says in result.detail and not result.is_in_force
    assert api.nodes[NODE]["metadata"]["labels"][CONFIG_LABEL] == "all-1g.10gb"


def test_a_label_that_cannot_be_put_back_stays_in_force(api: ApiServer, client: KubeClient) -> None:
    manager = Manager(api, "failed")

    class Breaking(Manager):
        def __init__(self) -> None:
            def act(now_s: float) -> None:
                manager.act(now_s)
                if api.nodes[NODE]["metadata"]["labels"][STATE_LABEL] == "failed":
                    api.fail("PATCH", "nodes", refuse(503, "ServiceUnavailable"))

            self.act = act

    result, _ = by_label(client, Breaking())
    assert result.outcome is Outcome.FAILED and result.is_in_force


def test_preconditions_of_the_label(api: ApiServer, client: KubeClient) -> None:
    assert "no MIG manager runs there" in by_label(client, None)[0].detail
    manager = Manager(api)
    used, _ = by_label(client, manager, report([tenant("chat", on=(OTHER_GPU,))]))
    assert used.outcome is Outcome.SKIPPED and used.detail == "GPU 1 is used by chat"
    labels = api.nodes[NODE]["metadata"]["labels"]
    labels[STATE_LABEL] = "rebooting"
    assert "in state rebooting" in by_label(client, manager)[0].detail
    labels.update({STATE_LABEL: "success", CONFIG_LABEL: "all-3g.40gb"})
    assert "already" in by_label(client, manager)[0].detail
    assert api.made("PATCH") == []


def unanswered() -> Any:
    raise MigError("NVML Shared Library Not Found")


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        (Driver(gpu(), gpu(1, is_enabled=False, pids=(4711,))), "GPU 1 is used by 1 process"),
        (Driver(gpu()), f"NVML does not list {OTHER_GPU}"),
        (unanswered, "NVML does not say whether the GPUs are free: NVML Shared Library Not Found"),
    ],
)
def test_the_label_is_left_alone_unless_nvml_says_that_nobody_is_on_any_gpu(
    api: ApiServer, client: KubeClient, driver: Any, says: str
) -> None:
    """A server that has loaded its model and waits has no demand, and without a driver hook no known context."""
    manager = Manager(api)
    result, _ = by_label(client, manager, driver=driver)
    assert result.outcome is Outcome.SKIPPED and says in result.detail
    api.nodes[NODE]["metadata"]["labels"][CONFIG_LABEL] = "all-3g.40gb"
    undo = {"node": NODE, "before": "all-1g.10gb", "set": "all-3g.40gb"}
    back, _ = by_label(client, manager, driver=driver, kind=Kind.ROLLBACK, undo=undo)
    assert back.outcome is Outcome.SKIPPED and says in back.detail
    assert api.made("PATCH") == []


def test_a_node_without_a_gpu_that_nvml_knows_is_left_alone(api: ApiServer, client: KubeClient) -> None:
    result, _ = by_label(client, Manager(api), replace(FREE, gpus=()), driver=Driver())
    assert result.outcome is Outcome.SKIPPED and "any GPU" in result.detail and api.made("PATCH") == []


def test_a_process_that_came_since_the_label_was_planned_keeps_its_gpu(
    api: ApiServer, client: KubeClient
) -> None:
    driver = Driver(gpu(), gpu(1))

    def somebody_comes(undo: Any) -> None:
        driver.now[OTHER_GPU] = gpu(1, pids=(4711,))

    result, _ = by_label(client, Manager(api), driver=driver, announce=somebody_comes)
    assert result.outcome is Outcome.SKIPPED and api.made("PATCH") == []


def test_a_label_is_not_put_back_under_a_process_that_came_while_the_manager_worked(
    api: ApiServer, client: KubeClient
) -> None:
    driver, manager = Driver(gpu(), gpu(1)), Manager(api, "failed")
    act = manager.act

    def act_and_let_somebody_come(now_s: float) -> None:
        driver.now[GPU] = gpu(pids=(4711,))
        act(now_s)

    manager.act = act_and_let_somebody_come
    result, _ = by_label(client, manager, driver=driver)
    assert result.outcome is Outcome.FAILED and result.is_in_force and "used by 1 process" in result.detail
    assert api.nodes[NODE]["metadata"]["labels"][CONFIG_LABEL] == "all-3g.40gb"
    driver.now[GPU] = gpu()
    back, _ = by_label(client, Manager(api, keep=True), driver=driver, kind=Kind.ROLLBACK, undo=result.undo)
    assert back.outcome is Outcome.ROLLED_BACK
    assert api.nodes[NODE]["metadata"]["labels"][CONFIG_LABEL] == "all-1g.10gb"


@pytest.mark.parametrize(
    ("ends", "state"), [("success", "success"), ("failed", "failed"), ("pending", "success")]
)
def test_a_node_that_had_no_label_has_none_again_and_no_state_of_ours(
    api: ApiServer, client: KubeClient, ends: str, state: str
) -> None:
    """A manager that is asked for nothing says nothing: a state of ours would keep the step from being taken again."""
    manager = Manager(api, ends)
    labels = api.nodes[NODE]["metadata"]["labels"]
    del labels[CONFIG_LABEL]
    done, _ = by_label(client, manager)
    assert done.outcome is (Outcome.DONE if ends == "success" else Outcome.FAILED)
    if ends == "success":
        back, _ = by_label(client, None, kind=Kind.ROLLBACK, undo=done.undo)
        assert back.outcome is Outcome.ROLLED_BACK
    assert labels == {STATE_LABEL: state} and not done.is_in_force
    again, _ = by_label(client, Manager(api, keep=True))
    assert again.outcome is (Outcome.SKIPPED if ends == "failed" else Outcome.DONE)


def test_who_was_given_up_splits_no_gpu() -> None:
    driver = Driver(gpu())
    assert take(driver, MigSettings(TWO_HALVES), check=given_up_after(0)).outcome is Outcome.FAILED
    assert driver.now[GPU].layout == ("7g.40gb",)
    done = take(driver, MigSettings(TWO_HALVES))
    take(driver, MigSettings(TWO_HALVES), kind=Kind.ROLLBACK, undo=done.undo, check=given_up_after(0))
    assert driver.now[GPU].layout == TWO_HALVES


@pytest.mark.parametrize("before", ["all-1g.10gb", None])
@pytest.mark.parametrize("changes", [0, 1])
def test_who_was_given_up_sets_no_label_and_puts_none_back(
    api: ApiServer, client: KubeClient, before: str | None, changes: int
) -> None:
    manager = Manager(api, "failed")
    if before is None:
        del api.nodes[NODE]["metadata"]["labels"][CONFIG_LABEL]
    result, _ = by_label(client, manager, check=given_up_after(changes))
    assert result.outcome is Outcome.FAILED and result.is_in_force
    assert len(api.made("PATCH")) == changes
