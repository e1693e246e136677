# SPDX-License-Identifier: Apache-2.0
"""The demo as a person starts it: it shows what it promises, and whenever and however it ends, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairsched.base.process import ProcessId
from fairsched.cgroup import tree
from fairsched.cgroup.path import Mount
from fairsched.demo import janitor
from fairsched.simgpu.build import build, cache_root
from fairsched.simgpu.host import default_state_root

WaitUntil = Callable[..., None]

COMMAND = [sys.executable, "-c", "import fairsched.cli; fairsched.cli.main()", "demo"]
# Of a run with --seconds 2: the start takes about five seconds, the halves four, the end two.
_MOMENTS = random.Random(7)
MOMENTS_S = [round(_MOMENTS.uniform(0.05, 11.0), 2) for _ in range(6)]
GONE_WITHIN_S = 60.0
"""Two or three seconds on a machine that does nothing else."""


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    build()  # once, so that the moments below are moments of the demo and not of the compiler


class Demo:
    """One run in its own session, as on a terminal of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        owner = ProcessId.of(self.process.pid)
        assert owner is not None
        self.name = janitor.name_of(owner)

    def leftovers(self, mount: Mount) -> list[str]:
        """Everything of this run that there still is."""
        roots = (Path(mount.absolute(janitor.SLICE)), default_state_root().parent, cache_root())
        found = [str(root / self.name) for root in roots if (root / self.name).exists()]
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.process.pid:
                found += [self._process(entry)] if self._is_ours(entry) else []
        return found

    def _is_ours(self, entry: Path) -> bool:
        """Its helpers inherit the name in their environment when it is not in their arguments."""
        try:
            return self.name.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            return False

    @staticmethod
    def _process(entry: Path) -> str:
        return f"{entry}: {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()[:200]}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []

    def begin(*arguments: str) -> Demo:
        demos.append(Demo(tmp_path, *arguments))
        return demos[-1]

    yield begin
    for demo in demos:
        if demo.process.poll() is None:
            demo.process.kill()
        demo.process.communicate()


def is_clean(demo: Demo, mount: Mount) -> Callable[[], bool]:
    return lambda: demo.leftovers(mount) == []


@pytest.mark.alone
def test_shares_follow_the_weights_and_nothing_is_left(
    start: Callable[..., Demo], mount: Mount, tmp_path: Path
) -> None:
    demo = start("--seconds", "6", "--json", "--png", "fair.png")
    out, err = demo.process.communicate(timeout=240)
    assert demo.process.returncode == 0, err
    document = json.loads(out)
    before, after = document["unscheduled"], document["scheduled"]
    # Generous: the figures are for the benchmarks, on a machine that does nothing else.
    assert before["largest_error_ratio"] > 0.3
    assert after["largest_error_ratio"] < 0.1
    assert after["busy_ratio"] > 0.8
    assert (tmp_path / "fair.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["fair.png"]
    assert demo.leftovers(mount) == []


@pytest.mark.parametrize("moment_s", MOMENTS_S)
def test_ctrl_c_at_any_moment_leaves_nothing(
    start: Callable[..., Demo], mount: Mount, wait_until: WaitUntil, moment_s: float
) -> None:
    demo = start("--seconds", "2")
    _live(demo, moment_s)
    with contextlib.suppress(ProcessLookupError):  # a quick machine is done by then
        os.killpg(demo.process.pid, signal.SIGINT)  # as the terminal does: everybody in the foreground
    _, err = demo.process.communicate(timeout=GONE_WITHIN_S)
    assert "Traceback" not in err
    wait_until(is_clean(demo, mount), GONE_WITHIN_S, "nothing of the demo is left")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_leaves_nothing(
    start: Callable[..., Demo], mount: Mount, wait_until: WaitUntil, number: signal.Signals
) -> None:
    demo = start("--seconds", "30", "--png", "none.png")
    _wait_for(demo, "  2 s")
    demo.process.send_signal(number)
    demo.process.communicate(timeout=GONE_WITHIN_S)
    assert demo.process.returncode == 128 + number
    wait_until(is_clean(demo, mount), GONE_WITHIN_S, "nothing of the demo is left")


@pytest.mark.parametrize("moment_s", [0.4, 3.0, 9.0])
def test_kill_9_at_any_moment_leaves_nothing(
    start: Callable[..., Demo], mount: Mount, wait_until: WaitUntil, moment_s: float
) -> None:
    demo = start("--seconds", "3")
    _live(demo, moment_s)
    demo.process.kill()
    demo.process.wait()
    wait_until(is_clean(demo, mount), GONE_WITHIN_S, "nothing of the demo is left")


def test_the_next_demo_sweeps_what_one_left_that_died_with_its_janitor(mount: Mount) -> None:
    dead = subprocess.Popen(["true"])
    owner = ProcessId(dead.pid, 1)
    dead.wait()
    name = janitor.name_of(owner)
    root = default_state_root().parent
    try:
        tree.create(mount, f"{janitor.SLICE}/{name}/chat").write("cgroup.freeze", "1")
        (root / name / "run" / "holds").mkdir(parents=True)
        janitor.sweep_stale(mount, (root,))
        assert not Path(mount.absolute(f"{janitor.SLICE}/{name}")).exists()
        assert not (root / name).exists()
    finally:
        janitor.sweep(mount, name, (root,), grace_s=0.0)


def test_what_belongs_to_a_demo_that_runs_is_not_swept(mount: Mount) -> None:
    name = janitor.name_of(ProcessId.me())
    path = f"{janitor.SLICE}/{name}"
    try:
        tree.create(mount, path).close()
        janitor.sweep_stale(mount, ())
        assert Path(mount.absolute(path)).exists()
    finally:
        janitor.sweep(mount, name, (), grace_s=0.0)


def test_without_root_it_says_what_to_do(tmp_path: Path) -> None:
    run = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *COMMAND],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Permission denied" in run.stderr or "ModuleNotFoundError" in run.stderr:
        pytest.skip("host: the checkout cannot be read by other users")
    assert run.returncode == 3, run.stderr
    assert "remedy: sudo fairsched demo" in run.stderr


def _live(demo: Demo, moment_s: float) -> None:
    """Let it run for so long; a run that is over earlier is one of the moments, too."""
    try:
        demo.process.wait(moment_s)
    except subprocess.TimeoutExpired:
        return


def _wait_for(demo: Demo, text: str) -> None:
    """Until a line with this text has come out."""
    assert demo.process.stdout is not None
    for line in demo.process.stdout:
        if text in line:
            return
    raise AssertionError(f"it ended without a word of {text!r}")
