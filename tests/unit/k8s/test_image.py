# SPDX-License-Identifier: Apache-2.0
"""The agent's image: what is in it, and that the same files make the same one. tests/k8s runs it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from fairsched import __version__
from tests.unit.repo.tree import ROOT


def load_builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("image_builder", ROOT / "packaging/image/build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder: Any = load_builder()


def test_the_programs_of_the_kernel_and_the_command_are_in_it_once(tmp_path: Path) -> None:
    builder.write_own(tmp_path / "own.tar")
    with tarfile.open(tmp_path / "own.tar") as tar:
        names = tar.getnames()
        assert all((one.uid, one.gid, one.mtime, one.uname) == (0, 0, 0, "") for one in tar)
    assert len(names) == len(set(names))
    assert {f"{builder.SITE}/fairsched/{one}" for one in ("bpf/gpu_time.bpf.c", "cgroup/freezer.py")} <= set(
        names
    )
    assert "usr/local/bin/fairsched" in names


def test_what_speaks_to_the_kubelet_is_in_it_and_no_tool_of_developers() -> None:
    names = {
        name.removeprefix(f"{builder.SITE}/").split("/")[0] for name, _ in builder.python_files("fairsched")
    }
    assert {"grpc", "google", "click", "typing_extensions.py"} <= names
    assert names.isdisjoint({"grpc_tools", "pytest", "mypy", "matplotlib", "mcp"})


def test_time_zones_are_in_it() -> None:
    """Without them no configuration can be read: hours and days of limits are in zones."""
    assert "tzdata" in builder.wanted_packages()
    assert not builder.UNWANTED.match("usr/share/zoneinfo/Etc/UTC")
    assert builder.UNWANTED.match("usr/share/zoneinfo/right/Etc/UTC")


def test_the_same_files_make_the_same_layer(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        builder.write_own(tmp_path / name)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_an_archive_names_its_layers_by_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "layer").write_bytes(b"x" * 100)
    builder.write_archive(tmp_path / "image.tar", "a/b:1", [tmp_path / "layer"])
    digest = hashlib.sha256(b"x" * 100).hexdigest()
    with tarfile.open(tmp_path / "image.tar") as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json") or pytest.fail("no manifest"))
        config = json.load(tar.extractfile(manifest["Config"]) or pytest.fail("no configuration"))
    assert manifest["RepoTags"] == ["a/b:1"] and manifest["Layers"] == [f"{digest}/layer.tar"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}"]


def test_what_a_package_depends_on_comes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = [
        "Package: a\nStatus: install ok installed\nVersion: 1\nDepends: b (>= 2) | z, virtual\nPre-Depends: c",
        "Package: b\nStatus: install ok installed\nVersion: 2\nDepends: missing | a",
        "Package: c\nStatus: deinstall ok config-files\nVersion: 3",
        "Package: d\nStatus: install ok installed\nVersion: 4\nProvides: virtual (= 1), other",
        "Package: e\nStatus: install ok installed\nVersion: 5",
    ]
    (tmp_path / "status").write_text("\n\n".join(status) + "\n")
    monkeypatch.setattr(builder, "STATUS", tmp_path / "status")
    assert [one["Package"] for one in builder.closure(["a"])] == ["a", "b", "d"]
    with pytest.raises(builder.BuildError, match="apt-get install c"):
        builder.closure(["c"])


def test_the_chart_and_the_builder_name_one_image() -> None:
    chart = yaml.safe_load((ROOT / "packaging/helm/fairsched/Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "packaging/helm/fairsched/values.yaml").read_text())
    assert f"{values['image']['repository']}:{chart['appVersion']}" == builder.NAME
    assert chart["appVersion"] == __version__
