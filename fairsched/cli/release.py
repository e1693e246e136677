# SPDX-License-Identifier: Apache-2.0
"""``fairsched release``: the way out that must always work.

No daemon, no configuration and no schema is needed: the journal of holds says what is ours. The
default run directory is released before the configuration is even looked at; that is only read to
learn of another run directory, and a broken one is a warning. Last of all a daemon is asked whether it
goes on to hold.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.base.text import wrap
from fairsched.cli.common import config_option, echo_json, echo_lines, json_option
from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.cgroup.release import Release
    from fairsched.config import Config

DEFAULT_RUN_DIR = Path("/run/fairsched")
_ASK_S = 1.0
"""Everybody is free by then: whoever asked need not wait for a daemon that hangs."""

EPILOG = """\b
Only what fairsched froze is thawed: a docker pause or an operator's freeze
stays. The device gate is taken away, too, unless --keep-gate says that a
daemon comes back for it. Running it twice does no harm. Where a daemon runs
that goes on to hold, a warning says so, and how to stop it.
\b
Examples:
  fairsched release
  systemctl stop fairsched && fairsched release --json"""


@click.command("release", epilog=EPILOG)
@config_option
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Only this run directory; the configuration is not read.",
)
@click.option("--keep-gate", is_flag=True, help="Leave the device gate as it is.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, config_path: Path | None, run_dir: Path | None, keep_gate: bool, as_json: bool
) -> None:
    """Thaw everything fairsched holds, take its device gate away. Needs no daemon."""
    run_dirs = [run_dir or DEFAULT_RUN_DIR]
    sockets = [run_dirs[0] / "fairsched.sock"]
    done = release_run_dir(run_dirs[0])
    config = _configured(config_path) if run_dir is None else None
    if config is not None:
        if config.run_dir not in run_dirs:
            run_dirs.append(config.run_dir)
            done += release_run_dir(config.run_dir)
        sockets.append(config.socket_path)
    opened, why_not = ([], None) if keep_gate else release_gates(run_dirs)
    is_clean = all(one.is_clean for one in done) and why_not is None
    holders = [pid for pid in map(holding_daemon, dict.fromkeys(sockets)) if pid is not None]
    if as_json:
        answer = {"releases": [_plain(one) for one in done], "gates": opened, "gate_error": why_not}
        echo_json({**answer, "is_clean": is_clean, "holding_daemons": holders})
    else:
        echo_lines([*render(done), *(f"device gate removed: {path}" for path in opened)])
        for pid in holders:
            click.echo(
                f"warning: the daemon (pid {pid}) runs in mode enforce, and holds tenants again", err=True
            )
            click.echo("  to keep everything thawed: systemctl stop fairsched", err=True)
        if why_not is not None:
            click.echo(f"error: the device gate: {why_not}", err=True)
    ctx.exit(0 if is_clean else 1)


def holding_daemon(socket: Path) -> int | None:
    """The pid of a daemon that goes on to hold tenants; None: nobody there says so, within a second."""
    from fairsched.protocol.client import ControlClient

    try:
        status = ControlClient(socket, timeout_s=_ASK_S).request("status")
        return int(status["pid"]) if status["mode"] == "enforce" else None
    except (FairschedError, KeyError, TypeError, ValueError):
        return None


def release_gates(run_dirs: list[Path]) -> tuple[list[str], str | None]:
    """Take away the device gates of these daemons; the cgroups they were on, and why not all are gone.

    Without the privilege to ask the kernel nothing is known, and nothing said: such a caller has attached none.
    """
    from fairsched.bpf.gate import find_programs, owner_of
    from fairsched.cgroup.devices import detach_everywhere
    from fairsched.cgroup.path import find_mount

    found = []
    try:
        for run_dir in run_dirs:
            found += find_programs(owner_of(run_dir))
        return (detach_everywhere(find_mount(), [one.fd for one in found]) if found else []), None
    except PermissionError:
        return [], None
    except FairschedError as error:
        return [], f"{error}; {error.remedy}".rstrip("; ")
    except OSError as error:
        return [], None if error.errno == errno.ENOSYS else str(error)
    finally:
        for one in found:
            one.close()


def release_run_dir(run_dir: Path) -> list[Release]:
    """Release what the journal below `run_dir` names; [] when there is none."""
    directory = run_dir / "holds"
    if not os.path.isdir(directory):
        return []
    from fairsched.cgroup.journal import Journal
    from fairsched.cgroup.path import find_mount, find_v1_mount
    from fairsched.cgroup.release import release_all
    from fairsched.cgroup.v1 import FREEZER, V1Freezer

    journal = Journal(str(directory))
    try:
        # where there is nothing to do a host without cgroups is no obstacle either
        done = release_all(journal, find_mount()) if journal.names() else []
        v1 = find_v1_mount(FREEZER)
        if v1 is not None:
            V1Freezer(v1).tidy()
        return done
    finally:
        journal.close()


def _configured(config_path: Path | None) -> Config | None:
    default = Path("/etc/fairsched/config.yaml")
    if config_path is None and not default.exists():
        return None
    try:
        from fairsched.config import load

        return load(config_path)
    except (FairschedError, ImportError) as error:
        click.echo(f"warning: {error}", err=True)
        click.echo("  only the default run directory was released; see --run-dir", err=True)
        return None


def render(done: list[Release]) -> list[str]:
    """One line per entry of the journal."""
    if not done:
        return ["nothing is held by fairsched"]
    lines: list[str] = []
    for one in done:
        what = f"{one.kind.value.replace('_', ' ')}: {one.path or one.name}"
        if one.tenant:
            what += f" (tenant {one.tenant})"
        if one.detail:
            what += f": {one.detail}"
        lines += wrap(what)
    return lines


def _plain(one: Release) -> dict[str, object]:
    return {
        "kind": one.kind.value,
        "path": one.path,
        "tenant": one.tenant,
        "cgroup_id": one.cgroup_id,
        "detail": one.detail,
        "is_clean": one.is_clean,
    }
