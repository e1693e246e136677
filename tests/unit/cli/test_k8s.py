# SPDX-License-Identifier: Apache-2.0
"""``fairsched k8s`` from outside, against the model of the API server: answers, exit statuses, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fairsched.cli import cli
from fairsched.cli.k8s import common
from fairsched.errors import ConfigError, FairschedError, HostUnsupported
from fairsched.k8s.client import Refused
from fairsched.k8s.pools import nvml
from fairsched.k8s.pools.detect import Detected
from tests.unit.k8s.pools.model import Model
from tests.unit.k8s.pools.scene import gpus, labels, node, taint


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    made = Model()
    monkeypatch.setattr(common, "connect", lambda *_: made)
    return made


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "pools.yaml"
    pool = {"nodes": {"accelerator": "h100"}, "workload": "training", "taints": [taint("gpu", "yes")]}
    path.write_text(yaml.safe_dump({"pools": {"p": pool}, "namespaces": {"ml": {"quota": {"pods": 5}}}}))
    return str(path)


def ask(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["k8s", *arguments])
    assert result.exit_code == status, (result.output, result.exception)
    if not result.stdout.startswith(("{", "[")):
        assert all(len(line) <= 80 for line in result.stdout.splitlines()), result.stdout
    return result


def fail(*arguments: str) -> FairschedError:
    error = CliRunner().invoke(cli, ["k8s", *arguments]).exception
    assert isinstance(error, FairschedError)
    return error


def test_a_command_that_is_mistyped_is_guessed() -> None:
    result = ask("docter", status=2)
    assert (
        "Usage: cli k8s" in result.stderr
        and "No such command 'docter'. Did you mean 'doctor'?" in result.stderr
    )


def test_a_plan_is_told_in_words(model: Model, file: str) -> None:
    node(model, workload="theirs", **gpus())
    assert ask("plan", "-f", file).stdout == (
        "Node n1\n"
        "  + label accelerator: h100\n"
        "  + label gpu-count: 8\n"
        "  + label mig: off\n"
        "  + taint gpu:NoSchedule: yes\n"
        "  ! label workload is theirs, set by kubectl; wanted training\n"
        "ResourceQuota ml/fairsched-pools: new\n"
        "  + spec.hard.pods: 5\n"
        "2 objects to change, of which 1 cannot without --force-conflicts\n"
    )
    document: Any = json.loads(ask("plan", "-f", file, "--json").stdout)
    assert document[0]["conflicts"] == [
        {"what": "label workload", "before": "theirs", "after": "training", "owners": ["kubectl"]}
    ]


def test_diff_exits_as_kubectls_does(model: Model, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node(model, **gpus())
    shown = ask("diff", "-f", file, status=1).stdout
    assert "--- live/Node/n1\n+++ wanted/Node/n1\n" in shown and "+    accelerator: h100" in shown
    assert "--- live/ResourceQuota/ml/fairsched-pools" in shown and "+    pods: '5'" in shown
    ask("apply", "-f", file)
    assert ask("diff", "-f", file).stdout == ""
    assert fail("diff", "-f", file + ".none").exit_status == 2

    def refuse(*_: Any) -> Any:
        raise Refused("GET /api/v1/nodes", 403, {"reason": "Forbidden"}, None)

    monkeypatch.setattr(model, "listed", refuse)
    assert fail("diff", "-f", file).exit_status == 2
    assert fail("plan", "-f", file).exit_status == 1


def test_apply_says_what_it_did_and_fails_when_something_is_in_the_way(model: Model, file: str) -> None:
    path = node(model, workload="theirs", **gpus())
    result = ask("apply", "-f", file, status=1)
    assert "ResourceQuota ml/fairsched-pools: new" in result.stdout
    assert "error: Node n1: label workload: set by kubectl\n  remedy: give it up there" in result.stderr
    forced = ask("apply", "-f", file, "--force-conflicts").stdout
    assert "~ label workload: theirs -> training (taken over from kubectl)" in forced
    assert labels(model, path)["workload"] == "training"
    assert ask("apply", "-f", file).stdout == "nothing to change\n"


def test_label_without_a_file_and_by_nvml(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = node(model), node(model, "n2", **gpus())
    monkeypatch.setattr(nvml, "detect_here", lambda: Detected("l4", 2, "none", "nvml"))
    assert "+ label accelerator: l4" in ask("label", "--nvml", "--node", "n1", "--dry-run").stdout
    assert labels(model, path) == {}
    ask("label", "--nvml", "--node", "n1")
    assert labels(model, path) == {"accelerator": "l4", "gpu-count": "2", "mig": "none"}
    assert "accelerator" not in labels(model, other)
    ask("label")
    assert labels(model, other)["accelerator"] == "h100" and labels(model, path)["accelerator"] == "l4"
    assert "name it with --node" in ask("label", "--nvml", status=2).stderr
    monkeypatch.setenv("NODE_NAME", "n2")
    ask("label", "--nvml")
    assert labels(model, other)["accelerator"] == "l4"


def test_without_nvml_nothing_is_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent NVML is no node without GPUs."""

    class None_:
        error, gpus = "no library", ()

        def close(self) -> None:
            pass

    monkeypatch.setattr(nvml, "Nvml", None_)
    with pytest.raises(HostUnsupported, match="no library"):
        nvml.detect_here()
    monkeypatch.setattr(None_, "error", None)
    with pytest.raises(HostUnsupported, match="no GPU"):
        nvml.detect_here()


def test_backup_and_restore_go_by_files(model: Model, file: str, tmp_path: Path) -> None:
    node(model, team="b", **gpus())
    before = tmp_path / "before.json"
    ask("backup", "-o", str(before))
    assert before.stat().st_mode & 0o777 == 0o600
    assert "is there already" in str(fail("backup", "-o", str(before)))
    ask("apply", "-f", file)
    assert "- label workload: training" in ask("restore", str(before), "--dry-run").stdout
    ask("restore", str(before))
    assert ask("backup").stdout == before.read_text()
    ask("backup", "-o", str(before), "--overwrite")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["before.json", "pools.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"fairsched_backup": 2}', '{"fairsched_backup": 1, "objects": [{}]}', "[" * 100_000,
        '{"fairsched_backup": 1, "objects": [{"kind": "Secret", "namespace": "", "name": "x", "fields": [],'
        ' "taints": []}]}',
        '{"fairsched_backup": 1, "objects": [{"kind": "ResourceQuota", "namespace": "../x", "name": "x", "fields": [],'
        ' "taints": []}]}',
        '{"fairsched_backup": 1, "objects": [{"kind": "Node", "namespace": "", "name": "x", "taints": [],'
        ' "fields": [[["spec", "unschedulable"], true, true]]}]}',
    ],
)  # fmt: skip
def test_what_is_no_backup_changes_nothing(model: Model, tmp_path: Path, text: str) -> None:
    """Above all: what it names beside labels and taints is not written to a node."""
    path = tmp_path / "b"
    path.write_text(text)
    node(model)
    error = fail("restore", str(path))
    assert isinstance(error, ConfigError) and str(path) in str(error) and error.remedy
    assert model.writes == 1


@pytest.mark.usefixtures("model")
def test_a_backup_that_is_not_there_is_said() -> None:
    assert "cannot be read" in str(fail("restore", "/nowhere"))
