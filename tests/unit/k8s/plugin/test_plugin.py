# SPDX-License-Identifier: Apache-2.0
"""The plugin and a kubelet: registered, watched, asked; both started anew; GPUs that fall ill."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairsched.errors import FairschedError
from fairsched.k8s.grpc_io import NotAnswered
from fairsched.k8s.plugin import __main__ as program
from fairsched.k8s.plugin.cdi import CONTROL, Places, qualified
from fairsched.k8s.plugin.link import AGAIN_S, WATCHED_S
from fairsched.k8s.plugin.loop import PLACED_S, Loop
from fairsched.k8s.plugin.service import Ways
from fairsched.k8s.plugin.settings import PluginSettings
from fairsched.k8s.plugin.shares import Offer
from tests.support import wait_until
from tests.unit.k8s.plugin.kubelet import A, B, FakeKubelet, offer, shares, some

SEEN_S = 10.0


class Gpus:
    """An inventory that a test moves."""

    def __init__(self, *offers: Offer) -> None:
        self.given = list(offers)
        self.has_looked = True

    def offers(self) -> tuple[Offer, ...]:
        return tuple(self.given)

    def close(self) -> bool:
        return True


class Node:
    """A loop, turned by a test, on a node with two GPUs."""

    def __init__(self, directory: Path, kubelet: FakeKubelet, **settings: Any) -> None:
        self.now_s = 1000.0
        self.kubelet = kubelet
        self.gpus = Gpus(offer(A), offer(B, minor=1, numa=1))
        places = Places(cdi=directory / "cdi", dev=directory / "dev", proc=directory / "proc")
        places.dev.mkdir(exist_ok=True)
        for name in (*CONTROL, "nvidia0", "nvidia1"):
            if not (places.dev / name).exists():
                (places.dev / name).symlink_to("/dev/null")
        self.settings = PluginSettings(
            plugins=kubelet.directory,
            pod_resources=kubelet.resources,
            run=directory / "run",
            places=places,
            **settings,
        )
        self.open()

    def open(self) -> None:
        self.loop = Loop(self.settings, self.gpus, clock=lambda: self.now_s)  # type: ignore[arg-type]

    def step(self, seconds: float = 0.5) -> None:
        self.now_s += seconds
        self.loop.step()

    def wait_seen(self, **healthy: int) -> None:
        """Until the kubelet sees so many healthy shares of the GPUs A and B."""
        wanted = {{"a": A, "b": B}[key]: count for key, count in healthy.items()}

        def is_seen() -> bool:
            self.step()
            return self.kubelet.healthy() == wanted

        wait_until(is_seen, SEEN_S, f"the kubelet sees {wanted}")

    def placed(self) -> Any:
        return json.loads((self.settings.run / "shares.json").read_text())


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("p")  # a socket's path is short


@pytest.fixture
def kubelet(directory: Path) -> Iterator[FakeKubelet]:
    (directory / "k").mkdir()
    found = FakeKubelet(directory / "k")
    yield found
    found.stop()


@pytest.fixture
def node(directory: Path, kubelet: FakeKubelet) -> Iterator[Node]:
    found = Node(directory, kubelet)
    yield found
    found.loop.close()


# ---- what there is ----


def test_a_hundred_shares_of_each_gpu_are_registered_and_seen(node: Node) -> None:
    node.wait_seen(a=100, b=100)
    (asked,) = node.kubelet.registered
    assert (asked.version, asked.resource_name) == ("v1beta1", "fairsched.io/gpu-share")
    assert asked.options.get_preferred_allocation_available and not asked.options.pre_start_required
    assert stat.S_IMODE(node.kubelet.plugin.stat().st_mode) == 0o600


def test_a_gpu_that_is_unwell_has_unhealthy_shares_until_it_is_well(node: Node) -> None:
    node.wait_seen(a=100, b=100)
    node.gpus.given = [offer(A, trouble="GPU is lost"), offer(B, minor=1)]
    node.wait_seen(b=100)
    assert node.kubelet.seen["GPU-aaaa::0"] == "Unhealthy"
    node.gpus.given = [offer(A), offer(B, minor=1)]
    node.wait_seen(a=100, b=100)
    node.gpus.given = [offer(B, minor=1)]
    node.wait_seen(b=100)
    assert not any(name.startswith(A) for name in node.kubelet.seen), "what is gone is no share"


def test_a_gpu_that_no_specification_has_is_unhealthy_until_one_has(node: Node) -> None:
    (node.settings.places.dev / "nvidia1").unlink()
    node.wait_seen(a=100)
    (node.settings.places.dev / "nvidia1").symlink_to("/dev/null")
    node.now_s += 30
    node.wait_seen(a=100, b=100)


def test_a_specification_that_somebody_removes_is_written_again(node: Node) -> None:
    node.step()
    file = node.settings.places.cdi / "fairsched.io-gpu.json"
    file.unlink()
    node.step()
    assert file.exists()


def test_before_nvml_has_said_anything_no_kubelet_is_told_of_no_gpus(node: Node) -> None:
    """It would refuse the pods that it starts just then."""
    node.gpus.has_looked = False
    for _ in range(5):
        node.step()
    assert node.kubelet.registered == []
    node.step(20)
    assert len(node.kubelet.registered) == 1, "but not for ever"


# ---- restarts ----


def test_a_kubelet_that_is_started_anew_is_registered_with_again(node: Node) -> None:
    node.wait_seen(a=100, b=100)
    node.kubelet.stop()
    node.step()
    node.kubelet.start()
    node.wait_seen(a=100, b=100)
    assert len(node.kubelet.registered) == 2


def test_a_kubelet_that_forgets_us_and_leaves_the_socket_is_registered_with_again(node: Node) -> None:
    node.kubelet.does_watch = False
    node.step()
    node.step(WATCHED_S - 1)
    assert len(node.kubelet.registered) == 1
    node.kubelet.does_watch = True
    node.step(1)
    assert len(node.kubelet.registered) == 2
    node.wait_seen(a=100, b=100)
    for _ in range(5):
        node.step(WATCHED_S)
    assert len(node.kubelet.registered) == 2, "as long as it reads there is no need"


def test_a_kubelet_that_refuses_is_asked_again_less_and_less_often(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.kubelet.refuses = True
    for _ in range(60):
        node.step(1)
    assert caplog.text.count("plugin=unregistered") == 1 and "not now" in caplog.text
    node.kubelet.refuses = False
    for _ in range(round(AGAIN_S[-1]) + 1):
        node.step(1)
    assert len(node.kubelet.registered) == 1


def test_a_plugin_that_is_started_anew_knows_all_that_is_given_out(node: Node) -> None:
    node.wait_seen(a=100, b=100)
    node.kubelet.pods = {"ml/a": some(A, 25)}
    node.step(PLACED_S)
    before = node.placed()
    node.loop.close()
    wait_until(lambda: node.kubelet.healthy() == {}, SEEN_S, "the kubelet gives out nothing meanwhile")
    assert node.placed() == before, "who has what is known meanwhile"
    node.open()
    node.wait_seen(a=100, b=100)
    assert node.placed() == before == {"version": 1, "pods": {"ml/a": {A: 25}}}


def test_two_plugins_are_never_on_one_node(node: Node) -> None:
    with pytest.raises(FairschedError, match="another device plugin"):
        Loop(node.settings, node.gpus)  # type: ignore[arg-type]


# ---- giving out ----


def test_what_is_given_out_is_injected_by_cdi(node: Node) -> None:
    node.wait_seen(a=100, b=100)
    answer = node.kubelet.allocate(some(B, 25))
    assert [one.name for one in answer.cdi_devices] == [qualified(B)]
    assert dict(answer.envs) == {
        "FAIRSCHED_GPU_SHARES": f"{B}=25", "NVIDIA_VISIBLE_DEVICES": "void"
    }  # fmt: skip
    assert list(answer.devices) == [] and list(answer.mounts) == []


def test_the_variable_of_nvidias_runtime_is_for_who_wants_it(directory: Path, kubelet: FakeKubelet) -> None:
    node = Node(directory, kubelet, ways=Ways(is_cdi=False, is_env=True))
    try:
        (node.settings.places.dev / "nvidia0").unlink()
        node.wait_seen(a=100, b=100)
        answer = kubelet.allocate([*some(B, 10), *some(A, 15)])
        assert list(answer.cdi_devices) == [] and answer.envs["NVIDIA_VISIBLE_DEVICES"] == f"{B},{A}"
        assert not node.settings.places.cdi.exists()
    finally:
        node.loop.close()


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ([], "given no share"),
        (["GPU-other::1"], "there is no such share"),
        (shares(A, 100), "there is no such share"),
        (shares(A, 1, 1), "named twice"),
        (["nonsense"], "is no share"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(node: Node, ids: list[str], why: str) -> None:
    node.wait_seen(a=100, b=100)
    with pytest.raises(NotAnswered, match=f"invalid argument: .*{why}"):
        node.kubelet.allocate(ids)


def test_a_gpu_that_has_just_fallen_ill_is_not_given_out(node: Node) -> None:
    node.wait_seen(a=100, b=100)
    node.gpus.given = [offer(A, trouble="GPU is lost"), offer(B, minor=1)]
    node.wait_seen(b=100)
    with pytest.raises(NotAnswered, match="failed precondition: GPU-aaaa is unwell: GPU is lost"):
        node.kubelet.allocate(some(A, 1))


def test_shares_of_several_gpus_are_for_who_needs_them(directory: Path, kubelet: FakeKubelet) -> None:
    node = Node(directory, kubelet, ways=Ways(is_split_allowed=False))
    try:
        node.wait_seen(a=100, b=100)
        assert len(kubelet.allocate([*some(A, 100), *some(B, 50)]).cdi_devices) == 2
        with pytest.raises(NotAnswered, match="no GPU has 40 shares left"):
            kubelet.allocate([*some(A, 20), *some(B, 20)])
    finally:
        node.loop.close()


def test_the_kubelet_is_told_which_to_take(node: Node) -> None:
    node.wait_seen(a=100, b=100)
    free = [*some(A, 30), *some(B, 100)]
    assert node.kubelet.prefer(free, 25) == some(A, 25)
    with pytest.raises(NotAnswered, match="invalid argument"):
        node.kubelet.prefer(["nonsense"], 1)


# ---- who has what ----


def test_who_has_what_is_asked_soon_after_something_was_given_out(node: Node) -> None:
    node.wait_seen(a=100, b=100)
    node.step(PLACED_S)
    assert node.placed()["pods"] == {}
    node.kubelet.allocate(some(A, 25))
    node.kubelet.pods = {"ml/a": some(A, 25), "ml/b": [*some(A, 3, first=50), *some(B, 2), "odd", "x::01"]}
    node.step(1)
    assert node.placed()["pods"] == {"ml/a": {A: 25}, "ml/b": {A: 3, B: 2}}
    assert stat.S_IMODE((node.settings.run / "shares.json").stat().st_mode) == 0o600


def test_a_kubelet_that_does_not_tell_leaves_what_it_told(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.kubelet.pods = {"ml/a": some(A, 25)}
    node.step(PLACED_S)
    node.kubelet.stop()
    for _ in range(3):
        node.step(PLACED_S)
    assert node.placed()["pods"] == {"ml/a": {A: 25}}
    assert caplog.text.count("placed=unknown") == 1


# ---- the program ----


def test_the_program_says_whether_one_that_runs_answers(
    node: Node, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    node.wait_seen(a=100, b=100)
    assert program.main(["--health", "--plugin-dir", str(node.kubelet.directory)]) == 0
    assert program.main(["--health", "--plugin-dir", str(tmp_path)]) == 1
    assert "error: /v1beta1.DevicePlugin/GetDevicePluginOptions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shares-per-gpu", "0"], "--shares-per-gpu: 0 is not 1 to 1000"),
        (["--shares-per-gpu", "1001"], "--shares-per-gpu"),
        (["--quiet-s", "nan"], "--quiet-s"),
        (["--inject", "mount"], "--inject: 'mount' is not understood"),
        (["--inject", ""], "--inject"),
        (["--unwell-xids", "48,x"], "--unwell-xids: '48,x' has what is no number"),
        (["--unwell-xids", "-3"], "--unwell-xids"),
        (["--plugin-dir", "here"], "--plugin-dir: is no absolute path"),
    ],
)
def test_a_bad_option_is_named_and_nothing_is_begun(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main([*arguments]) == 2
    told = capsys.readouterr().err
    assert said in told and "remedy:" in told


def test_no_xid_may_be_named() -> None:
    told = program.parser().parse_args(["--unwell-xids", "", "--nvidia-ctk", "none"])
    assert program.settings_of(told).unwell_xids == ()
    assert program.settings_of(told).places.tool is None


STRANGER = """
import os, socket, sys
os.setuid(65534)
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""


def test_it_serves_no_stranger(node: Node) -> None:
    """Whose stream would end the kubelet's."""
    node.wait_seen(a=100, b=100)
    if os.geteuid() != 0:
        pytest.skip("host: needs another user")
    done = subprocess.run(
        [sys.executable, "-S", "-c", STRANGER, str(node.kubelet.plugin)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "PermissionError" in done.stderr, done
