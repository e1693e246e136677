# SPDX-License-Identifier: Apache-2.0
"""What is done around peers' own code; without it, without a GPU and without root."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers, peers_attached
from benchmarks.fair.controllers import Controller
from benchmarks.fair.scenario import Play, find, load
from benchmarks.peers_attached import HamiCore, Nvshare, Peer, Xsched, parts
from benchmarks.rig import BenchError
from fairsched.errors import ConfigError
from tests.unit.benchmarks.made_stage import FakeRig


@pytest.fixture
def play() -> Play:
    return load(find(Path("weights-4211")))


def built(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    return directory


# ---- the command ----


@pytest.mark.parametrize("option", ["--hami-core", "--nvshare", "--xsched"])
def test_a_path_where_nothing_is_is_an_error_with_a_remedy(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert peers.main([option, str(tmp_path / "absent")]) == ConfigError("").exit_status
    said = capsys.readouterr().err
    assert f"error: {option}: {tmp_path}/absent" in said
    assert "remedy: give" in said and "docs/fairness.md" in said


def test_only_what_was_built_is_played_beside_none_and_fairsched(tmp_path: Path):
    assert list(peers.chosen_peers(peers._parse([]))) == ["none", "fairsched"]
    nvshare = built(tmp_path, "libnvshare.so", "nvshare-scheduler", "nvsharectl")
    assert list(peers.chosen_peers(peers._parse(["--nvshare", str(nvshare)])))[2:] == ["nvshare"]
    xsched = built(tmp_path, "bin/xserver", "lib/libshimcuda.so")
    names = list(peers.chosen_peers(peers._parse(["--xsched", str(xsched)])))[2:]
    assert names == ["xsched", "xsched-one"]


def test_a_policy_without_its_path_is_named(capsys: pytest.CaptureFixture[str]):
    assert list(peers.chosen_peers(peers._parse(["--policy", "none"]))) == ["none"]
    assert peers.main(["--policy", "nvshare"]) == ConfigError("").exit_status
    assert "--policy nvshare" in capsys.readouterr().err


def test_a_run_that_was_played_is_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, play: Play
):
    played: list[str] = []

    def perform(_play: Play, _chosen: Controller, asked: dict[str, Any]) -> dict[str, Any]:
        played.append(asked["policy"])
        return {"share_error_max_points": 1.0}

    monkeypatch.setattr(peers, "perform", perform)
    options = peers._parse(["--json", str(tmp_path / "out.json"), "--seed", "1"])
    first = peers.played(options, peers.chosen_peers(options), play)
    assert played == ["none", "fairsched"] and [run["policy"] for run in first] == played
    assert peers.found_runs(options.json) == peers.played(options, peers.chosen_peers(options), play)
    assert len(played) == 2


def test_a_file_that_is_no_summary_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (path := tmp_path / "other.json").write_text("{}")
    assert peers.main(["--json", str(path)]) == 1
    assert f"{path}: no summary" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["absent", "false"])
def test_a_program_that_fails_is_no_traceback(program: str):
    with pytest.raises(BenchError, match=program):
        peers_attached._run(program)


@pytest.mark.parametrize("wrong", [["--seconds", "0"], ["--blocks", "0"], ["--seconds", "601"]])
def test_wrong_numbers_are_wrong_usage(wrong: list[str]):
    with pytest.raises(SystemExit) as ended:
        peers._parse(wrong)
    assert ended.value.code == 2


def test_a_scenario_with_tricks_is_refused():
    play = load(find(Path("hostile-ptrace")))
    asked = peers._asked(play, "none", 1, peers._parse([]))
    with pytest.raises(ConfigError, match="strangers or tricks"):
        peers.perform(play, Controller(), asked)


# ---- what is owed ----


def test_what_is_owed_follows_the_weights_or_nobody(play: Play):
    assert parts(play) == {"gold": 0.5, "silver": 0.25, "bronze": 0.125, "greedy": 0.125}
    even = peers.equal(play)
    assert set(parts(even).values()) == {0.25} and even.name != play.name
    assert parts(play)["gold"] == 0.5  # the scenario itself is as it was


# ---- around the loads ----


def environments(peer: Peer, rig: FakeRig, play: Play) -> dict[str, dict[str, str]]:
    with peer.running(rig, play, {}):  # type: ignore[arg-type]
        return {leaf: peer.env(leaf) for leaf in play.leaves()}


def test_hami_core_gets_a_limit_in_percent_and_one_region_per_tenant(tmp_path: Path, play: Play):
    library = built(tmp_path, "libvgpu.so") / "libvgpu.so"
    env = environments(HamiCore(library), FakeRig(tmp_path), play)
    assert [one["CUDA_DEVICE_SM_LIMIT"] for one in env.values()] == ["50", "25", "12", "12"]
    assert len({one["CUDA_DEVICE_MEMORY_SHARED_CACHE"] for one in env.values()}) == 4
    assert all(one["LD_PRELOAD"] == one["CUDA_REDIRECT"] == str(library) for one in env.values())


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Daemons that are only noted."""
    asked: list[list[str]] = []

    @contextlib.contextmanager
    def daemon(command: list[str], *_rest: Any) -> Any:
        asked.append(command)
        yield

    monkeypatch.setattr(peers_attached, "_daemon", daemon)
    monkeypatch.setattr(peers_attached, "_NVSHARE_SOCKET", tmp_path / "run/scheduler.sock")
    monkeypatch.setattr(peers_attached.subprocess, "run", lambda command, **_: asked.append(list(command)))
    return asked


def test_xsched_gets_parts_per_process_on_a_scale_to_its_limit(
    tmp_path: Path, play: Play, answering: list[list[str]]
):
    rig: Any = FakeRig(tmp_path)
    rig.libcuda = tmp_path / "lib/libcuda.so.1"
    peer = Xsched(built(tmp_path / "x", "bin/xserver", "lib/libshimcuda.so"), threshold=2)
    env = environments(peer, rig, play)
    assert [one["XSCHED_AUTO_XQUEUE_UTILIZATION"] for one in env.values()] == ["100", "50", "25", "8"]
    assert {one["XSCHED_AUTO_XQUEUE_THRESHOLD"] for one in env.values()} == {"2"}
    assert {one["XSCHED_CUDA_LIB"] for one in env.values()} == {str(rig.libcuda)}
    assert peer.libcuda == str(tmp_path / "x/lib/libshimcuda.so")
    assert answering[-1][:2] == [str(tmp_path / "x/bin/xserver"), "PUP"]


def test_nvshare_finds_the_name_it_looks_for_and_has_the_shortest_quantum(
    tmp_path: Path, play: Play, answering: list[list[str]]
):
    rig: Any = FakeRig(tmp_path)
    rig.libcuda = built(tmp_path, "lib/libcuda.so.1") / "lib/libcuda.so.1"
    peer = Nvshare(built(tmp_path, "libnvshare.so", "nvshare-scheduler", "nvsharectl"))
    environments(peer, rig, play)
    assert (tmp_path / "lib/libcuda.so").resolve() == rig.libcuda
    assert answering[-1] == [str(tmp_path / "nvsharectl"), "-T", "1"]


def test_another_nvshare_scheduler_is_not_disturbed(tmp_path: Path, play: Play, answering: list[list[str]]):
    peer = Nvshare(built(tmp_path, "libnvshare.so", "nvshare-scheduler", "nvsharectl"))
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "run/scheduler.sock"))
        other.listen()
        with pytest.raises(BenchError, match="runs already"):
            environments(peer, FakeRig(tmp_path), play)
    assert not answering and (tmp_path / "run/scheduler.sock").exists()


def test_every_load_has_the_blocks_and_only_a_peer_changes_more(tmp_path: Path, play: Play):
    library = built(tmp_path, "libvgpu.so") / "libvgpu.so"
    for number, chosen in enumerate((Controller(), HamiCore(library))):
        (root := tmp_path / str(number)).mkdir()
        rig = FakeRig(root)
        with contextlib.ExitStack() as undo:
            stage = peers._PeerStage(rig, play, 1, undo, chosen, 4096)  # type: ignore[arg-type]
            with chosen.running(rig, play, stage.directories()):  # type: ignore[arg-type]
                stage.open()
                undo.pop_all()
        assert len(rig.host.spawned) == 6
        for name, _, workload, env in rig.host.spawned:
            assert workload.arguments()[-2:] == ["--blocks", "4096"], name
            assert env["FAIRSCHED_SIM_OWNER"] in "1234"
            assert ("LD_PRELOAD" in env) == isinstance(chosen, Peer)


def test_a_daemon_that_does_not_answer_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peers_attached, "_READY_S", 0.2)
    rig: Any = FakeRig(tmp_path)
    command = ["sh", "-c", "echo no such policy >&2"]
    daemon = peers_attached._daemon(command, rig, socket.AF_UNIX, str(tmp_path / "socket"))
    with pytest.raises(BenchError, match="no such policy"), daemon:
        pass


def test_a_daemon_that_ends_meanwhile_spoils_the_run(tmp_path: Path):
    rig: Any = FakeRig(tmp_path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "socket"))
        other.listen()
        daemon = peers_attached._daemon(["true"], rig, socket.AF_UNIX, str(tmp_path / "socket"))
        with pytest.raises(BenchError, match="ended by itself"), daemon as process:
            process.wait()


# ---- what is told ----


def run(policy: str, seed: int, error: float | None) -> dict[str, Any]:
    return {
        "scenario": "s",
        "policy": policy,
        "seed": seed,
        "seconds": 30.0,
        "blocks": 4096,
        "share_error_max_points": error,
        "busy_ratio": 0.95,
        "share_ratio": {"a": 0.6, "b": None if error is None else 0.4},
        "part_ratio": {"a": 0.5, "b": 0.5},
    }


def test_the_table_has_a_line_per_policy_and_says_what_is_not_known():
    lines = peers.table([run("none", 1, 8.0), run("none", 2, 12.0), run("x", 1, None)])
    assert "`s`, 2 seeds, 30 s each, 4096 blocks a launch" in lines[1]
    assert "| none | 10.00 | 8.00 to 12.00 | 95.0 | 60.0 | 40.0 |" in lines
    assert any(line.startswith("| x | nan") for line in lines)
