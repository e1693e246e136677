# SPDX-License-Identifier: Apache-2.0
"""Each word means one thing, and each command says what the one who asked has to know."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairsched.cli import cli
from fairsched.config import from_bytes
from fairsched.errors import ConfigError
from fairsched.model import MisbehaviourKind
from fairsched.protocol.status import StatusReport, TenantState
from fairsched.reclaim.holder import GpuView
from fairsched.reclaim.listing import gpus_called
from tests.unit.protocol import fakes
from tests.unit.protocol.fakes import FakeDaemon, serving


def test_no_state_of_a_tenant_has_the_name_of_a_misbehaviour() -> None:
    """To have opened no GPU is no offence."""
    assert not {one.value for one in TenantState} & {one.value for one in MisbehaviourKind}


def ask(*arguments: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result


# ---- a daemon that runs, or does not ----


def test_release_beside_a_daemon_says_that_holding_goes_on(tmp_path: Path) -> None:
    class Daemon(FakeDaemon):
        mode = "enforce"

        def status(self) -> StatusReport:
            return replace(fakes.status(), mode=self.mode)

    daemon = Daemon()
    with serving(tmp_path / "fairsched.sock", daemon):
        said = ask("release", "--run-dir", tmp_path)
        assert said.stdout == "nothing is held by fairsched\n"
        assert "the daemon (pid 7) runs in mode enforce, and holds tenants again" in said.stderr
        assert "systemctl stop fairsched" in said.stderr
        assert json.loads(ask("release", "--run-dir", tmp_path, "--json").stdout)["holding_daemons"] == [7]
        daemon.mode = "observe"
        assert ask("release", "--run-dir", tmp_path).stderr == "", "it holds nobody"
    assert ask("release", "--run-dir", tmp_path).stderr == ""


def test_release_asks_the_daemon_where_the_configuration_has_its_socket(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"run_dir: {tmp_path}/run\ncontrol: {{socket: {tmp_path}/other}}\n")
    with serving(tmp_path / "other"):
        assert "(pid 7)" in ask("release", "-c", tmp_path / "c.yaml").stderr


def test_the_state_of_escalation_without_a_daemon_is_said_to_be_old(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"run_dir: {tmp_path}\nstate_dir: {tmp_path}\n")
    words = ("escalation", "status", "-c", tmp_path / "c.yaml")
    said = " ".join(ask(*words).stdout.split())
    assert "! the fairsched daemon is not running" in said
    assert "this is how it stood when that was written last" in said
    assert "not running" in json.loads(ask(*words, "--json").stdout)["daemon_error"]
    with serving(tmp_path / "fairsched.sock"):
        assert "!" not in ask(*words).stdout
        assert json.loads(ask(*words, "--json").stdout)["daemon_error"] is None


def test_a_broken_file_keeps_nobody_from_asking_and_nobody_is_changed_by_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.yaml").write_text("tick_ms: [\n")
    monkeypatch.setattr("fairsched.protocol.client.DEFAULT_SOCKET", tmp_path / "s")
    with serving(tmp_path / "s"):
        said = ask("status", "-c", tmp_path / "c.yaml")
        assert said.stdout.startswith("fairsched 0.1.0, mode enforce")
        assert f"warning: {tmp_path}/c.yaml" in said.stderr
        assert f"asking on {tmp_path}/s" in said.stderr
        for words in (
            ["tenant", "set", "chat", "--weight", "2"],
            ["tenant", "unset", "chat"],
            ["config", "reload"],
        ):
            refused = ask(*words, "-c", tmp_path / "c.yaml", status=1)
            assert isinstance(refused.exception, ConfigError), words


# ---- which GPU ----


def test_a_gpu_is_named_by_its_index_or_by_how_its_uuid_begins() -> None:
    gpus = (GpuView("GPU-aa-1", "0"), GpuView("GPU-ab-1", "1"), GpuView("MIG-cc-1", "1/2/0"))
    assert gpus_called("1", gpus) == {"GPU-ab-1"}
    assert gpus_called("1/2/0", gpus) == {"MIG-cc-1"}
    assert gpus_called("GPU-a", gpus) == {"GPU-aa-1", "GPU-ab-1"}


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRSCHED_SOCKET", str(tmp_path / "s"))
    with serving(tmp_path / "s"):
        assert [one["pid"] for one in json.loads(ask("ps", "--gpu", "0", "--json").stdout)] == [4194301, 812]
        for name in ("7", "GPU-7"):
            said = ask("ps", "--gpu", name, status=2).stderr
            assert f"there is no GPU '{name}'; there are: - (GPU-99999999), 0 (GPU-5f2c1a90)" in said


# ---- what a tenant is promised ----

PLACES = """
tenants:
  chat: {cgroup: [a.slice/chat, b.slice/chat], gpus: [0, 1], vram_limit: 8GiB, on_vram_limit: hold}
  shop: {match: {docker: [shop, till]}, gpus: none, vram_limit: 512MiB}
  team: {children: {x: {}}}
"""


def test_the_list_of_tenants_has_their_cgroups_gpus_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = FakeDaemon()
    daemon.config = from_bytes(PLACES.encode(), "f.yaml")
    monkeypatch.setenv("FAIRSCHED_SOCKET", str(tmp_path / "s"))
    with serving(tmp_path / "s", daemon):
        lines = ask("tenant", "list").stdout.splitlines()
        tenants = {one["name"]: one for one in json.loads(ask("tenant", "list", "--json").stdout)["tenants"]}
    assert all(len(line) <= 80 for line in lines)
    told = [line for line in lines if line.startswith("  ")]
    assert " ".join(" ".join(told).split()) == (
        "cgroup a.slice/chat, b.slice/chat; gpus 0, 1; vram_limit 8 GiB, beyond it hold "
        "match docker: shop, till; gpus none; vram_limit 0.5 GiB, beyond it (warn) "
        "cgroup (gpu.slice/team); gpus (-); vram_limit (-) "
        "gpus (-); vram_limit (-)"
    )
    assert tenants["chat"]["cgroup"] == ["a.slice/chat", "b.slice/chat"]
    assert (tenants["chat"]["gpus"], tenants["chat"]["vram_limit"]) == ([0, 1], 8 << 30)
    assert tenants.keys() == {"chat", "shop", "team", "team/x"}
