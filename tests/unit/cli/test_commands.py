# SPDX-License-Identifier: Apache-2.0
"""The commands from outside: answers on stdout, errors with a remedy on stderr, the right exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from fairsched.cli import COMMANDS, cli, execute, main
from fairsched.cli.reference import reference
from fairsched.cli.tenant import set_command
from fairsched.config import from_bytes
from fairsched.errors import FairschedError
from fairsched.model import ADJUSTABLE
from tests.unit.protocol.fakes import FakeDaemon, serving

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    fake = FakeDaemon()
    monkeypatch.setenv("FAIRSCHED_SOCKET", str(tmp_path / "s"))
    with serving(tmp_path / "s", fake):
        yield fake


@pytest.fixture
def config_file() -> Iterator[Path]:
    """In a directory of a short name: where the answer shows it, the line is to fit the screen."""
    with tempfile.TemporaryDirectory(prefix="fs-") as directory:
        path = Path(directory) / "config.yaml"
        path.write_text(
            f"run_dir: {directory}/run\nstate_dir: {directory}\ntenants: {{chat: {{weight: 4}}}}\n"
        )
        yield path


def ask(*arguments: str | Path) -> Result:
    """Run a command that must succeed; its answer fits the screen unless it is JSON."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    if not result.stdout.startswith(("{", "[")):
        assert all(len(line) <= 80 for line in result.stdout.splitlines()), result.stdout
    return result


def shell(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """The real entry point in a real process."""
    return subprocess.run(
        [sys.executable, "-c", "from fairsched.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environ},
        check=False,
    )


def fails(status: int, *arguments: str | Path, **environ: str) -> str:
    """Stderr of a command that must end with `status`, without a traceback and with nothing on stdout."""
    done = shell(*arguments, **environ)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def all_commands() -> Iterator[list[str]]:
    for name in COMMANDS:
        yield [name]
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        yield from ([name, child] for child in getattr(command, "commands", ()))


@pytest.mark.parametrize("path", [[], *all_commands()], ids=" ".join)
def test_help_fits_and_ends_in_examples(path: list[str]) -> None:
    result = ask(*path, "--help")
    if not getattr(cli.get_command(None, path[0]) if path else None, "commands", None):  # type: ignore[arg-type]
        assert "Examples:\n" in result.stdout


def test_every_answer_can_be_had_in_json() -> None:
    """But for what is JSON anyway or a file, and the two that answer nothing themselves: see docs/cli.md."""
    without = set()
    for name, *child in all_commands():
        command: Any = cli.get_command(None, name)  # type: ignore[arg-type]
        if child:
            command = command.commands[child[0]]
        elif hasattr(command, "commands"):
            continue
        if not any("--json" in parameter.opts for parameter in command.params):
            without.add(" ".join([name, *child]))
    assert without == {"run", "exec", "events", "report", "config schema", "mcp"}


def test_help_and_release_import_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['fairsched', *sys.argv[1:]]\nfrom fairsched.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'pydantic', 'yaml', 'rich', 'bcc', 'psutil', 'pynvml'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    for arguments in (["--help"], ["tenant", "set", "--help"], ["release", "--run-dir", "/nowhere"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=240
        )
        assert done.stderr.strip() == "[]"


def test_usage_errors_are_2() -> None:
    assert "Did you mean 'status'?" in fails(2, "stats")
    assert "Nothing to set" in fails(2, "tenant", "set", "chat", FAIRSCHED_SOCKET="/nowhere")
    assert "30x" in fails(2, "tenant", "set", "chat", "--quota", "30x", FAIRSCHED_SOCKET="/nowhere")
    fails(2, "exec", "chat")


def test_a_missing_daemon_is_1_and_says_how_to_start_it() -> None:
    error = fails(1, "status", FAIRSCHED_SOCKET="/nowhere/s")
    assert error.startswith("error: the fairsched daemon is not running")
    assert "remedy: start it" in error


def test_health_is_1_when_it_is_not_well_and_says_why(daemon: FakeDaemon) -> None:
    assert ask("health").stdout == "well: mode enforce\n"
    daemon.mode = "observe"
    assert ask("health", "--live").exit_code == 0, "another start would change nothing"
    result = CliRunner().invoke(cli, ["health"])
    assert result.exit_code == 1
    assert result.stdout == "not well: mode is observe, not enforce: no brake works here\n"
    daemon.well_age_s = 11.0
    result = CliRunner().invoke(cli, ["health", "--live", "--json"])
    assert result.exit_code == 1 and not json.loads(result.stdout)["is_well"]


def test_a_bad_configuration_is_2_and_every_problem_is_shown(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tick_ms: x\ntenants:\n  chat:\n    wieght: 3\n")
    error = fails(2, "config", "check", "-c", tmp_path / "c.yaml")
    assert f"error: {tmp_path}/c.yaml:1: tick_ms: must be a whole number, not 'x'" in error
    assert f"error: {tmp_path}/c.yaml:4: tenants.chat.wieght: unknown key" in error
    assert "remedy: did you mean 'weight'?" in error


def test_a_host_that_cannot_is_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("fairsched.host.gather._bcc_version", lambda: None)
    monkeypatch.setattr("fairsched.host.gather._nvml", lambda: (None, "no driver", (), None))
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--no-bpf"])
    assert caught.value.code == 3
    assert "cannot run here" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_traceback(config_file: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -c 'from fairsched.cli import main; main()' config schema | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.stderr == ""


def test_config_check_says_what_is_valid(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config_file.parent)
    assert (
        ask("config", "check", "-c", "config.yaml").stdout == "config.yaml: valid, mode observe, tenants 1\n"
    )
    assert json.loads(ask("config", "check", "-c", config_file, "--json").stdout)["is_valid"] is True


def test_config_check_answers_in_json_about_a_bad_file(tmp_path: Path) -> None:
    for text, line in (("tick_ms: x", 1), ("tick_ms: [", None)):
        (tmp_path / "c.yaml").write_text(text)
        done = shell("config", "check", "--json", "-c", tmp_path / "c.yaml")
        assert done.returncode == 2
        problem = json.loads(done.stdout)["problems"][0]
        assert problem["line"] == line
        assert problem["remedy"]


def test_config_show_and_schema(config_file: Path) -> None:
    assert "tick_ms: 100  # default" in ask("config", "show", "-c", config_file).stdout
    shown = json.loads(ask("config", "show", "-c", config_file, "--json").stdout)
    assert shown["tenants.chat.weight"] == {"value": 4.0, "origin": "file"}
    assert json.loads(ask("config", "schema").stdout)["properties"]["tick_ms"]


def test_status_and_explain(daemon: FakeDaemon) -> None:
    assert "TENANT" in ask("status").stdout
    assert json.loads(ask("status", "--json").stdout)["tenants"][0]["name"] == "chat"
    assert "held 40 ms" in ask("explain", "batch").stdout
    assert json.loads(ask("explain", "batch", "--json").stdout)[0]["action"] == "hold"


def test_ps_and_what_it_is_narrowed_to(daemon: FakeDaemon) -> None:
    def pids(*options: str) -> list[int]:
        return [one["pid"] for one in json.loads(ask("ps", "--json", *options).stdout)]

    assert "GPU-5f2c1a90: 2 processes" in ask("ps").stdout
    assert pids() == [4194301, 812, 77]
    assert pids("--tenant", "chat") == [4194301]
    assert pids("--tenant", "-") == [77]
    assert pids("--gpu", "GPU-99") == [77]
    assert (pids("--idle", "25m"), pids("--idle", "1h")) == ([812], [])
    assert ask("ps", "--tenant", "nobody").stdout == "no process uses a GPU\n"


def test_a_daemon_of_another_version_is_said_so(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "status", lambda: {"schema_version": 3})
    result = CliRunner().invoke(cli, ["status"])
    assert isinstance(result.exception, FairschedError)
    assert "version" in str(result.exception)


def test_tenant_set_list_unset(daemon: FakeDaemon) -> None:
    assert ask("tenant", "set", "chat", "--weight", "6", "--quota", "80%").stdout.splitlines() == [
        "tenants.chat.weight 4 -> 6",
        "tenants.chat.quota null -> 0.8",
    ]
    assert ask("tenant", "list").stdout.splitlines() == [
        "TENANT  WEIGHT  CLASS      QUOTA   MIN  MAX HOLD MS  EXEMPT",
        "chat        6*  (latency)   80%*   20%          (-)  (no)",
        "  cgroup (gpu.slice/chat); gpus (-); vram_limit (-)",
        "batch      (1)  batch        50%  (0%)          (-)  (no)",
        "  cgroup (gpu.slice/batch); gpus (-); vram_limit (-)",
    ]
    assert ask("tenant", "unset", "chat", "weight").stdout == "tenants.chat.weight 6 -> 4\n"
    assert json.loads(ask("tenant", "unset", "chat", "--json").stdout)["changes"]
    assert "no change" in ask("tenant", "unset", "chat").stdout
    assert ask("tenant", "set", "chat", "--exempt").stdout == "tenants.chat.exempt false -> true\n"
    assert ask("tenant", "set", "chat", "--no-exempt").stdout == "tenants.chat.exempt true -> false\n"


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["tenant", "set", "chat", "--weight", "6"], {"changes": ["tenants.chat.weight 4 -> 6"]}),
        (["tenant", "unset", "batch", "class"], {"changes": ["tenants.batch.class latency -> batch"]}),
        (["tenant", "unset", "chat"], {"changes": []}),
    ],
    ids=" ".join,
)
def test_changes_of_a_tenant_in_json(daemon: FakeDaemon, arguments: list[str], answer: object) -> None:
    daemon.overrides = daemon.overrides.with_set("batch", {"class": "latency"})
    assert json.loads(ask(*arguments, "--json").stdout) == answer


def test_the_list_of_tenants_in_json(daemon: FakeDaemon) -> None:
    daemon.overrides = daemon.overrides.with_set("chat", {"weight": 2}).with_set("gone", {"weight": 2})
    answer = json.loads(ask("tenant", "list", "--json").stdout)
    assert answer["stale"] == ["gone"]
    chat, batch = answer["tenants"]
    assert (chat["name"], chat["weight"], chat["min"], batch["name"]) == ("chat", 2.0, 0.2, "batch")
    assert (chat["origins"]["weight"], chat["origins"]["min"]) == ("override", "file")


def test_the_doctor_in_json(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairsched.host.gather._bcc_version", lambda: None)
    monkeypatch.setattr("fairsched.host.gather._nvml", lambda: (None, "no driver", (), None))
    result = CliRunner().invoke(cli, ["doctor", "--no-bpf", "--json", "-c", str(config_file)])
    assert result.exit_code == 3
    answer = json.loads(result.stdout)
    assert answer.keys() == {"can_run", "checks", "choices", "facts", "ladder", "brakes"}
    assert answer["can_run"] is False and answer["choices"]["obstacles"]
    (bcc,) = (check for check in answer["checks"] if check["name"] == "bcc")
    assert bcc["level"] != "ok" and bcc["remedy"]


def test_an_override_that_breaks_the_rules_is_refused_with_status_2(daemon: FakeDaemon) -> None:
    error = fails(2, "tenant", "set", "chat", "--min", "90%", "--quota", "10%")
    assert "more than quota" in error
    assert "no tenant 'nobody'" in fails(2, "tenant", "set", "nobody", "--weight", "2")


def test_overrides_of_tenants_that_left_are_shown(daemon: FakeDaemon) -> None:
    daemon.overrides = daemon.overrides.with_set("gone", {"weight": 2})
    assert "fairsched tenant unset gone" in ask("tenant", "list").stdout


def test_a_reload_that_fails_says_why(daemon: FakeDaemon) -> None:
    assert "did you mean 'weight'?" in fails(2, "config", "reload")
    assert "tenants:" in ask("config", "show", "--running").stdout


def test_the_command_line_has_an_option_for_each_key_that_can_be_changed_and_no_other() -> None:
    options = {opt for one in set_command.params if isinstance(one, click.Option) for opt in one.opts}
    others = {"--socket", "-c", "--config", "--json"}
    assert options - others == {f"--{key.replace('_', '-')}" for key in ADJUSTABLE}


def test_release_with_nothing_to_release(tmp_path: Path) -> None:
    assert ask("release", "--run-dir", tmp_path).stdout == "nothing is held by fairsched\n"
    answer = json.loads(ask("release", "--run-dir", tmp_path, "--json").stdout)
    assert answer == {
        "releases": [],
        "gates": [],
        "gate_error": None,
        "is_clean": True,
        "holding_daemons": [],
    }


def test_release_goes_on_with_a_broken_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("tick_ms: [")
    done = shell("release", "-c", tmp_path / "c.yaml")
    assert done.returncode == 0
    assert "warning: " in done.stderr


def test_release_names_what_it_could_not_read(tmp_path: Path) -> None:
    (tmp_path / "holds").mkdir()
    (tmp_path / "holds" / "12.34").write_text("garbage")
    result = CliRunner().invoke(cli, ["release", "--run-dir", str(tmp_path)])
    assert "corrupt: 12.34" in result.stdout
    assert result.exit_code == 1


EXEC = """
tenants:
  chat: {}
  many: {cgroup: [a, b]}
  glob: {cgroup: 'k/*'}
  team: {children: {x: {}, 'y*': {}}}
"""


@pytest.mark.parametrize(
    ("tenant", "wanted", "cgroup"),
    [
        ("chat", None, "/gpu.slice/chat"),
        ("chat", "gpu.slice/chat/worker", "/gpu.slice/chat/worker"),
        ("many", "/b/", "/b"),
        ("glob", "k/1", "/k/1"),
        ("team/x", None, "/gpu.slice/team/x"),
        ("team/y1", "gpu.slice/team/y1", "/gpu.slice/team/y1"),
    ],
)
def test_exec_finds_the_cgroup_of_a_tenant(tenant: str, wanted: str | None, cgroup: str) -> None:
    assert execute.choose_cgroup(from_bytes(EXEC.encode(), "f"), tenant, wanted) == cgroup


@pytest.mark.parametrize(
    ("tenant", "wanted", "says"),
    [
        ("nobody", None, "no tenant"),
        ("team", None, "has children"),
        ("many", None, "more than one cgroup"),
        ("glob", None, "more than one cgroup"),
        ("team/y*", None, "more than one cgroup"),
        ("chat", "k/1", "belongs to tenant 'glob'"),
        ("chat", "system.slice", "belongs to no tenant"),
    ],
)
def test_exec_refuses_what_would_run_as_somebody_else(tenant: str, wanted: str | None, says: str) -> None:
    with pytest.raises(FairschedError, match=says) as caught:
        execute.choose_cgroup(from_bytes(EXEC.encode(), "f"), tenant, wanted)
    assert caught.value.exit_status == 2
    assert caught.value.remedy


def exec_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str
) -> tuple[Result, dict[str, Any]]:
    """Run exec on a tree of plain files; what would have been executed is recorded."""
    from fairsched.cgroup import path, tree
    from tests.support import FakeTree

    fake = FakeTree(tmp_path / "cgroup")
    fake.make("/gpu.slice/chat")
    seen: dict[str, Any] = {}
    monkeypatch.setattr(path, "find_mount", lambda: fake.mount)
    monkeypatch.setattr(tree, "place", lambda ref: seen.update(placed=ref.path))
    monkeypatch.setattr(
        os, "execvp", lambda file, argv: seen.update(argv=list(argv), after=seen.get("placed"))
    )
    (tmp_path / "c.yaml").write_text(EXEC)
    result = CliRunner().invoke(cli, ["exec", "-c", str(tmp_path / "c.yaml"), *arguments])
    return result, seen


def test_exec_places_itself_before_the_command_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for dashes in (["--"], []):
        _, seen = exec_with(monkeypatch, tmp_path, "chat", *dashes, "python", "-c", "pass", "--help")
        assert seen == {
            "placed": "/gpu.slice/chat",
            "after": "/gpu.slice/chat",
            "argv": ["python", "-c", "pass", "--help"],
        }


def test_exec_as_the_user_of_sudo_needs_sudo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)
    result, seen = exec_with(monkeypatch, tmp_path, "--sudo-user", "chat", "--", "true")
    assert result.exit_code == 2
    assert not seen


def test_exec_of_a_missing_command_is_127(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.execvp
    exec_with(monkeypatch, tmp_path, "chat", "--", "true")
    monkeypatch.setattr(os, "execvp", real)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # a directory that may not be read would make it 126
    result = CliRunner().invoke(
        cli, ["exec", "-c", str(tmp_path / "c.yaml"), "chat", "--", "no-such-command"]
    )
    assert result.exit_code == 127


def test_the_reference_is_up_to_date() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert text == reference(), "run: python -m fairsched.cli.reference > docs/cli.md"


NASTY = os.fsdecode(b"\xff\x1b[2J\x1b]0;owned\x07")
"""A cgroup or a process as a tenant may name it."""


def test_no_name_of_a_tenant_steers_the_terminal(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a real stdout, which takes UTF-8 alone."""
    report, process = daemon.status(), daemon.processes()[0]
    named = replace(report.tenants[0], name=NASTY, known_as=(f"docker {NASTY}",), note=f"paused in {NASTY}")
    monkeypatch.setattr(daemon, "status", lambda: replace(report, tenants=(named,), warnings=(NASTY,)))
    monkeypatch.setattr(
        daemon,
        "processes",
        lambda: [replace(process, tenant=NASTY, cgroup=f"/x/{NASTY}", container_id=None, pod_uid=None)],
    )
    for arguments in (["status", "--full"], ["ps"], ["explain", NASTY], ["top", "--once"]):
        done = shell(*arguments, PYTHONIOENCODING="utf-8:strict")
        assert done.returncode == 0, done.stderr
        assert all(line.isprintable() for line in done.stdout.split("\n")), done.stdout
    refused = shell("explain", NASTY, FAIRSCHED_SOCKET=str(tmp_path / NASTY))
    assert refused.returncode == 1
    assert all(line.isprintable() for line in refused.stderr.split("\n")), refused.stderr
