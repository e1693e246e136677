# SPDX-License-Identifier: Apache-2.0
"""The wheel and the sdist hold each package once, under fairsched, with the C sources beside the Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.unit.repo.tree import ROOT, project_files

BUILD = """
import sys
from setuptools import build_meta
print("built", getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""


def build(kind: str, tree: Path, out: Path) -> Path:
    """Build without a network and without isolation: setuptools is in the environment."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "GIT_"))}
    run = subprocess.run(
        [sys.executable, "-I", "-c", BUILD, kind, str(out)],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return out / run.stdout.strip().splitlines()[-1].removeprefix("built ")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project: setuptools writes into the directory it builds."""
    copy = tmp_path_factory.mktemp("tree")
    for path in project_files():
        target = copy / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
    for link in (ROOT / "fairsched").iterdir():
        if link.is_symlink():
            (copy / "fairsched" / link.name).symlink_to(os.readlink(link))
    return copy


@pytest.fixture(scope="module")
def wheel_names(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return zipfile.ZipFile(build("wheel", tree, tmp_path_factory.mktemp("wheel"))).namelist()


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", tree, tmp_path_factory.mktemp("sdist"))


def sources(*suffixes: str) -> set[str]:
    """Every package file of these kinds, as the wheel should name it."""
    found = set()
    for path in project_files():
        if path.suffix in suffixes and path.parts[0] in ("fairsched", "bpf", "cgroup"):
            found.add(str(path if path.parts[0] == "fairsched" else Path("fairsched") / path))
    return found


def test_the_links_point_at_the_eyes_and_the_hands() -> None:
    assert os.readlink(ROOT / "fairsched/bpf") == "../bpf"
    assert os.readlink(ROOT / "fairsched/cgroup") == "../cgroup"


def test_the_wheel_holds_every_source_once(wheel_names: list[str]) -> None:
    assert len(wheel_names) == len(set(wheel_names))
    assert sources(".py", ".c", ".h") - set(wheel_names) == set()


def test_the_wheel_puts_nothing_beside_fairsched(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"fairsched"}


def test_the_wheel_carries_both_licences_and_the_type_marker(wheel_names: list[str]) -> None:
    names = "\n".join(wheel_names)
    for wanted in ("licenses/LICENSE", "licenses/LICENSES/GPL-2.0-only.txt", "fairsched/py.typed"):
        assert wanted in names


def test_a_wheel_built_from_the_sdist_is_the_same(
    sdist: Path, wheel_names: list[str], tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
        # The archive is our own, made a moment ago.
        archive.extractall(tmp_path)
    assert {"bpf", "cgroup"} & tops == set()
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    out = tmp_path / "out"
    out.mkdir()
    assert set(zipfile.ZipFile(build("wheel", unpacked, out)).namelist()) == set(wheel_names)


def test_the_environment_imports_this_checkout(tmp_path: Path) -> None:
    """The editable install, seen from another directory, finds the eyes and the hands through the links."""
    code = "import fairsched.bpf as b, fairsched.cgroup as c; print(b.__file__); print(c.__file__)"
    run = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert [Path(line).resolve() for line in run.stdout.split()] == [
        ROOT / "bpf/__init__.py",
        ROOT / "cgroup/__init__.py",
    ]


def test_mypy_sees_the_linked_packages_once() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--verbose"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    modules = re.findall(r"Found source: .*?path='([^']*)', module='([^']*)'", run.stderr)
    real_paths = [Path(path).resolve() for path, _ in modules]
    assert {"fairsched.bpf", "fairsched.cgroup"} <= {module for _, module in modules}
    assert {module.split(".")[0] for _, module in modules} == {"fairsched", "benchmarks"}
    assert len(real_paths) == len(set(real_paths))
