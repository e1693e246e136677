# SPDX-License-Identifier: Apache-2.0
"""A bad configuration changes nothing and says what to do; a good one takes effect at once."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from fairsched.config import Config
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import PATIENCE_S, STEADY, Site, logged
from tests.support import wait_until

BAD = {
    "unknown key": ({"tenants": {"chat": {"wieght": 4}}}, "tenants.chat.wieght", "did you mean 'weight'"),
    "negative weight": ({"tenants": {"chat": {"weight": -1}}}, "tenants.chat.weight", "raise it"),
    "wrong type": ({"tick_ms": "soon"}, "tick_ms", "whole number"),
    "list of tenants": ({"tenants": ["chat"]}, "tenants", "indent"),
    "overlapping matches": (
        {"tenants": {"chat": {"cgroup": "x.slice/**"}, "train": {"cgroup": "x.slice/train"}}},
        "tenants.train.cgroup",
        "make the patterns disjoint, or use children",
    ),
    "one megabyte": ("tenants: {}  # " + "x" * (1 << 20), "", "shorten lists"),
    "no mapping": ("just a word", "", "tenants:"),
}


def text_of(content: object) -> str:
    return content if isinstance(content, str) else yaml.safe_dump(content)


def traces(site: Site, path: Path) -> list[str]:
    """What a daemon would make at its start, here and where it works unless a file says otherwise; when, too."""
    defaults = Config()
    directories = (path.parent, site.run_dir, site.state_dir, defaults.run_dir, defaults.state_dir)
    files = [
        entry for directory in directories for entry in (directory, *directory.rglob("*")) if entry.exists()
    ]
    cgroups = [
        Path(site.mount.absolute(f"/{name}")) for name in ("x.slice", "gpu.slice/chat", "gpu.slice/train")
    ]
    found = [f"{entry} {entry.lstat().st_mtime_ns}" for entry in files if entry != site.log_path]
    return [*sorted(found), *(str(cgroup) for cgroup in cgroups if cgroup.exists())]


@pytest.mark.parametrize("name", BAD)
def test_daemon_does_not_start_with_a_bad_file_and_changes_nothing(
    module_site: Site, tmp_path: Path, name: str
) -> None:
    content, key, remedy = BAD[name]
    path = tmp_path / "bad.yaml"
    if isinstance(content, dict):
        ours = {"run_dir": str(module_site.run_dir), "state_dir": str(module_site.state_dir)}
        path.write_text(text_of({**content, **ours}))
    else:
        path.write_text(text_of(content))
    before = traces(module_site, path)
    done = module_site.cli("run", "--once", "--config", str(path))
    assert done.returncode == 2, done.stderr
    assert str(path) in done.stderr
    assert key in done.stderr
    assert "remedy: " in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert traces(module_site, path) == before


def test_running_daemon_keeps_its_configuration_when_the_new_one_is_bad(make_site: MakeSite) -> None:
    site = make_site()
    site.configure({"chat": {"weight": 4}, "train": {"weight": 1}})
    site.start()
    good = site.config_path.read_text()

    def seen(text: str | None) -> bool:
        error = site.status()["config_error"]
        return error is None if text is None else text in (error or "")

    for name, (content, key, _) in BAD.items():
        site.config_path.write_text(good.replace("weight: 4", "weight: 4.0"))
        site.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
        wait_until(lambda: seen(None), PATIENCE_S, f"{name}: it recovered")
        site.config_path.write_text(text_of(content))
        site.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
        wait_until(lambda: seen(key or str(site.config_path)), PATIENCE_S, f"{name}: said")  # noqa: B023
        assert site.tenant("chat")["weight"] == 4
        assert any("not in force" in warning for warning in site.status()["warnings"])
    assert len(logged(site.log(), "reload=refused")) == len(BAD)
    done = site.cli("status", "--socket", str(site.socket_path))
    assert done.returncode == 0
    assert site.ping() == site.pid


def test_a_change_of_mode_is_told_everywhere_and_a_bad_reload_fails(site: Site) -> None:
    site.configure({"chat": {"weight": 4}})
    good = site.config_path.read_text()
    told: list[str] = []
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
    ):
        manager.bind(f"{directory}/notify")  # a short path: the name of a socket has 108 bytes at most
        manager.setblocking(False)

        def is_told(begin: str, end: str = "") -> bool:
            with contextlib.suppress(BlockingIOError):
                while True:
                    told.append(manager.recv(4096).decode())
            last = [one for one in told if one.startswith("STATUS=")][-1:]
            return any(one.startswith(f"STATUS={begin}") and end in one for one in last)

        def reload(text: str) -> subprocess.CompletedProcess[str]:
            site.config_path.write_text(text)
            return site.cli("config", "reload", "--socket", str(site.socket_path))

        site.daemon.extra_env["NOTIFY_SOCKET"] = f"{directory}/notify"
        site.start()
        wait_until(lambda: is_told("enforce, "), PATIENCE_S, "systemd knows the mode")
        assert reload(good.replace("mode: enforce", "mode: dry_run")).returncode == 0
        wait_until(lambda: is_told("dry_run, "), PATIENCE_S, "systemd knows the new mode")
        assert site.status()["mode"] == "dry_run"
        doctor = site.cli("doctor", "--no-bpf", "--json", "--config", str(site.config_path))
        (row,) = [one for one in json.loads(doctor.stdout)["checks"] if one["name"] == "daemon"]
        assert row["fact"] == f"running, pid {site.pid}, mode dry_run"
        refused = reload(good.replace("weight", "wieght"))
        assert refused.returncode == 2 and "did you mean 'weight'" in refused.stderr
        wait_until(
            lambda: is_told("dry_run, ", "configuration refused: "), PATIENCE_S, "and that the file is bad"
        )
    assert site.stop() == 0


def test_changes_take_effect_at_once_and_survive_a_restart(site: Site) -> None:
    site.configure({"chat": {"weight": 1}, "train": {"weight": 1}})
    site.start()
    site.spawn("chat", STEADY)
    site.spawn("train", STEADY)

    def entitled(name: str) -> float:
        return float(site.tenant(name)["entitled_ratio"] or 0)

    wait_until(lambda: abs(entitled("chat") - 0.5) < 0.01, PATIENCE_S, "both have demand")

    site.config_path.write_text(site.config_path.read_text().replace("weight: 1", "weight: 3", 1))
    site.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    wait_until(lambda: abs(entitled("chat") - 0.75) < 0.01, PATIENCE_S, "SIGHUP changes the weight")

    done = site.cli("tenant", "set", "chat", "--weight", "9", "--socket", str(site.socket_path))
    assert done.returncode == 0, done.stderr
    assert site.tenant("chat")["weight"] == 9, "at once"
    assert abs(entitled("chat") - 0.9) < 0.01, "the next decision knows it, and comes before the next answer"
    shares = site.shares(["chat", "train"])
    assert abs(shares["chat"] - 0.9) < 0.08, shares

    for worker in site.host.workers:
        worker.kill()
    before = {name: site.gpu_time_s(name) for name in ("chat", "train")}
    assert site.stop() == 0
    site.start()
    assert site.tenant("chat")["weight"] == 9
    after = {name: site.gpu_time_s(name) for name in ("chat", "train")}
    assert all(after[name] >= before[name] > 0.1 for name in before), (before, after)
    assert all(after[name] < before[name] + 0.5 for name in before), "not counted twice"

    site.ask("tenant_unset", tenant="chat", keys=[])
    assert site.tenant("chat")["weight"] == 3


@pytest.mark.parametrize("how", ["tenant_set", "reload"])
def test_a_change_is_decided_on_before_the_next_request_is_answered(site: Site, how: str) -> None:
    """Of itself the next tick is seconds away: who waits for it sees the old entitlement."""
    site.configure({"chat": {}, "train": {}}, tick_ms=10_000, inner_tick_ms=10_000)
    site.start()
    site.attach()
    for name in ("chat", "train"):
        site.spawn(name, STEADY)

    def entitled() -> float:
        return float(site.tenant("chat")["entitled_ratio"] or 0)

    wait_until(lambda: abs(entitled() - 0.5) < 0.01, PATIENCE_S, "both have demand")
    if how == "tenant_set":
        site.ask("tenant_set", tenant="chat", values={"weight": 9})
    else:
        site.config_path.write_text(site.config_path.read_text().replace("chat:", "chat:\n    weight: 9", 1))
        site.ask("reload")
    assert abs(entitled() - 0.9) < 0.01
