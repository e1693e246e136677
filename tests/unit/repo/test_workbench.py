# SPDX-License-Identifier: Apache-2.0
"""The commands a newcomer types: documented, executable, and honest about what they need."""

from __future__ import annotations

import re
import runpy
import shutil
import stat
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests.unit.repo.tree import ROOT, project_files, text_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 reads no pyproject.toml: pip install tomli")

COMMANDS = ("sudo make demo", "sudo make test")


def run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=240
    )


def makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


def test_bare_make_explains_itself_in_80_columns() -> None:
    out = run("make")
    assert out.returncode == 0
    documented = re.findall(r"^([a-z0-9-]+):.*## ", makefile(), flags=re.MULTILINE)
    assert {"demo", "test", "lint", "setup", "bench-core", "doctor"} <= set(documented)
    for target in documented:
        assert re.search(rf"^  {target} +\S", out.stdout, flags=re.MULTILINE), target
    assert max(map(len, out.stdout.splitlines())) <= 80


def test_every_target_is_phony() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):(?!=)", makefile(), flags=re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (\S+)$", makefile(), flags=re.MULTILINE))
    assert targets == phony


def test_programs_are_executable_and_lie_where_lint_looks() -> None:
    for path in project_files():
        first, _, _ = (text_of(path) or "").partition("\n")
        if first.startswith("#!"):
            assert (ROOT / path).stat().st_mode & stat.S_IXUSR, path
            if first.endswith("sh"):
                assert path.parts[0] in ("scripts", ".ci", "packaging"), path


def test_lint_finds_every_c_and_shell_file(tmp_path: Path) -> None:
    """With tools that only print their arguments, the list of files is the output."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in (".venv/bin", ".ci", "packaging", "bpf", "fairsched", "tests", "benchmarks"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "fairsched/bpf").symlink_to("../bpf")
    (tmp_path / "bpf/a file.bpf.c").touch()
    for tool in ("ruff", "clang-format", "shellcheck"):
        program = tmp_path / ".venv/bin" / tool
        program.write_text(f'#!/bin/sh\nprintf "{tool} <%s>\\n" "$@"\n')
        program.chmod(0o755)
    out = subprocess.run(
        ["scripts/lint"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/.venv/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.count("clang-format <bpf/a file.bpf.c>") == 1
    assert "fairsched/bpf" not in out.stdout
    assert {"shellcheck <scripts/setup>", "shellcheck <scripts/lint>"} <= set(out.stdout.splitlines())


def test_setup_rejects_an_unknown_profile() -> None:
    out = run("scripts/setup", "everything")
    assert (out.returncode, out.stdout) == (2, "")
    assert "usage:" in out.stderr


def test_setup_checks_every_dependency_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    check = runpy.run_path(str(ROOT / "scripts/check_environment.py"))

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[<>=!~ \[;]", requirement)[0] for requirement in requirements}

    assert names(project["dependencies"]) == set(check["RUN"])
    assert names(project["optional-dependencies"]["bench"]) == set(check["LOOK_ONLY"])
    assert names(project["optional-dependencies"]["dev"]) == set(check["DEV"])


def test_bcc_never_comes_from_the_package_index() -> None:
    """The package of that name there is an unrelated lattice library."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    everything = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    assert [line for line in everything if re.match(r"bcc\b", line)] == []


def test_this_environment_works() -> None:
    out = run(sys.executable, "-I", "scripts/check_environment.py", str(ROOT), "dev")
    assert (out.returncode, out.stdout) == (0, "")


def test_a_moved_environment_is_noticed(tmp_path: Path) -> None:
    """Judged against another checkout, this environment is the wrong one."""
    out = run(sys.executable, "-I", "scripts/check_environment.py", str(tmp_path), "run")
    assert out.returncode == 1
    assert "fairsched is not the one in" in out.stdout


def test_continuous_integration_calls_the_documented_command() -> None:
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "make test" in ci
    assert "FAIRSCHED_REQUIRE_NODE=1" in ci


def test_readme_names_both_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [command for command in COMMANDS if command not in text] == []


@pytest.mark.parametrize(("profile", "remedy"), [("dev", "sudo make setup"), ("vm", "sudo make setup-vm")])
def test_a_user_without_the_packages_is_told_to_use_sudo(tmp_path: Path, profile: str, remedy: str) -> None:
    """On this PATH no compiler is found, so packages are missing; and whoever asks is not root."""
    for tool in ("bash", "dirname", "flock", "tail", "stat", "env", "apt-get"):
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"host: no {tool} here")
        (tmp_path / tool).symlink_to(found)
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    out = run("scripts/setup", profile, env={"PATH": str(tmp_path)})
    assert out.returncode == 3
    assert out.stderr.rstrip().endswith(remedy)
    assert ("qemu-system-x86" in out.stderr) == (profile == "vm")


def test_without_apt_the_packages_of_other_systems_are_named(tmp_path: Path) -> None:
    for tool in ("bash", "dirname", "flock", "tail", "stat", "env", "id"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    out = run("scripts/setup", "dev", env={"PATH": str(tmp_path)})
    assert out.returncode == 3
    assert "python3-bcc" in out.stderr
