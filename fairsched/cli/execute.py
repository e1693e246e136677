# SPDX-License-Identifier: Apache-2.0
"""``fairsched exec TENANT -- COMMAND``: run a command as a tenant.

A tenant the configuration does not know is an error: its cgroup would have no owner, so the command
would run unaccounted and the name would be a promise nobody keeps.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fairsched.cli.common import config_option
from fairsched.errors import FairschedError

if TYPE_CHECKING:
    from fairsched.config import Config

EPILOG = """\b
The cgroup is made when it is missing and is left when the command ends. Exit
status: the command's own; 126 it cannot be executed, 127 it is not found.
\b
Examples:
  sudo fairsched exec chat -- python serve.py
  sudo fairsched exec --sudo-user batch -- ./train.sh
  sudo fairsched exec --cgroup gpu.slice/chat-2 chat -- python serve.py"""


@click.command("exec", epilog=EPILOG, context_settings={"allow_interspersed_args": False})
@click.argument("tenant")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@config_option
@click.option("--user", metavar="NAME", help="Become this user first.")
@click.option("--sudo-user", is_flag=True, help="Become the user who called sudo.")
@click.option("--cgroup", "cgroup_path", metavar="PATH", help="Which cgroup, if the tenant has several.")
@click.pass_context
def command(
    ctx: click.Context,
    tenant: str,
    argv: tuple[str, ...],
    config_path: Path | None,
    user: str | None,
    sudo_user: bool,
    cgroup_path: str | None,
) -> None:
    """Run COMMAND in the cgroup of TENANT."""
    if argv[0] == "--":
        argv = argv[1:]  # options end at TENANT, so click leaves the dashes in
    if not argv:
        raise click.UsageError("Missing the command to run.")
    from fairsched.cgroup import path, tree
    from fairsched.config import load

    if sudo_user:
        user = os.environ.get("SUDO_USER")
        if not user:
            raise click.UsageError("--sudo-user: not called through sudo; use --user NAME.")
    chosen = choose_cgroup(load(config_path), tenant, cgroup_path)
    account = _account(user) if user else None
    with tree.create(path.find_mount(), chosen) as ref:
        # before anything else: every process the command starts must be born in the cgroup
        tree.place(ref)
    if account is not None:
        _become(*account)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        click.echo(f"error: {argv[0]}: {error.strerror}", err=True)
        ctx.exit(127 if isinstance(error, FileNotFoundError) else 126)


def choose_cgroup(config: Config, tenant: str, wanted: str | None) -> str:
    """The cgroup to run in, as in /proc/PID/cgroup.

    Raises FairschedError when the tenant is unknown, the choice is not unique, or `wanted` belongs to
    somebody else.
    """
    from fairsched.config import CgroupOwners
    from fairsched.config.consistency import node_at
    from fairsched.config.patterns import is_literal

    if wanted is not None:
        owner = CgroupOwners(config).owner(wanted)
        if owner is None or owner.tenant != tenant:
            whose = "no tenant" if owner is None else f"tenant '{owner.tenant}'"
            raise _Refused(f"{wanted} belongs to {whose}, not to '{tenant}'", f"name a cgroup of '{tenant}'")
        return "/" + wanted.strip("/")
    top, *children = tenant.split("/")
    node = node_at(config.tenants, tenant)
    if node is None:
        known = ", ".join(config.tenant_specs()) or "none"
        raise _Refused(f"no tenant '{tenant}' in the configuration", f"add it to the file; known: {known}")
    if node.children:
        raise _Refused(
            f"'{tenant}' has children; only a leaf can own processes",
            f"name one: {', '.join(f'{tenant}/{name}' for name in node.children)}",
        )
    literal = [pattern for pattern in config.cgroup_patterns(top) if is_literal(pattern)]
    if len(literal) != 1 or not all(is_literal(name) for name in children):
        raise _Refused(f"'{tenant}' may live in more than one cgroup", "say which: --cgroup PATH")
    return "/" + "/".join([literal[0], *children])


class _Refused(FairschedError):
    exit_status = 2

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy=remedy)


def _account(user: str) -> tuple[str, int, int, str]:
    import pwd

    try:
        entry = pwd.getpwuid(int(user)) if user.isdigit() else pwd.getpwnam(user)
    except KeyError:
        raise _Refused(f"no user '{user}'", "see: getent passwd") from None
    return entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir


def _become(name: str, uid: int, gid: int, home: str) -> None:
    """Drop to the user for good: groups first, while we still may."""
    try:
        os.initgroups(name, gid)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    except PermissionError:
        raise FairschedError(f"cannot become '{name}'", remedy="run fairsched exec as root") from None
    os.environ.update(HOME=home, USER=name, LOGNAME=name)
