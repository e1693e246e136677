# SPDX-License-Identifier: Apache-2.0
"""Names of hosts, a file of them, and the ssh command for one (pure).

Problem: a name of a host is data, and ssh and the user's configuration give it powers: ``-oProxyCommand=...`` is an
option, and a ProxyCommand with ``%h`` in it puts the name before a shell (CVE-2023-51385).
Approach: only the letters that names and addresses need are let through, on top of what ssh itself checks, and ``--``
stands before the name. ssh hands the remote command to the login shell there as one string, whatever its argv was:
each word is quoted for a POSIX shell, so that it arrives as it is.
Terms: a *host* is a destination as ssh takes it: ``gpu1``, ``ann@gpu1``, ``ssh://ann@gpu1:2222``, or an alias of
ssh_config. The port of the short form comes from ssh_config.
Errors: HostsError names the option, or file and line.
Source: ssh(1), ssh_config(5).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairsched.errors import FairschedError

CONNECT_S = 8.0
"""Until ssh has a connection; ssh has the words when there is none."""
MOST_BYTES = 4 << 20
MOST_HOSTS = 10_000
_MOST_LETTERS = 255
_USER = r"[A-Za-z0-9_][A-Za-z0-9_.+@-]*"
_NAME = r"[A-Za-z0-9_.:][A-Za-z0-9_.:%-]*"
_HOST = re.compile(rf"(?:{_USER}@)?{_NAME}")
_URI = re.compile(rf"ssh://(?:{_USER}@)?(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])(?::(\d+))?/?")
_REMEDY = "write a host as ssh takes it: gpu1, ann@gpu1 or ssh://ann@gpu1:2222"

_OPTIONS = (
    # Never a question: a password, or whether an unknown host key is right.
    "BatchMode=yes",
    "LogLevel=ERROR",
    "RequestTTY=no",
    "RemoteCommand=none",
    # What the user's configuration may open for a login is not opened for this.
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
)


class HostsError(FairschedError):
    """A host, or a file of hosts, that cannot be used; exit status 2."""

    exit_status = 2


def checked(text: str, where: str) -> str:
    """The host. Raises HostsError; ``where``: the option, or file and line."""
    why = _fault(text)
    if why is not None:
        raise HostsError(f"{where}: {text[:60]!r} is no host: {why}", remedy=_REMEDY)
    return text


def _fault(text: str) -> str | None:
    if not text:
        return "it is empty"
    if text.startswith("-"):
        return "ssh would take it for an option"
    if len(text) > _MOST_LETTERS:
        return f"it is longer than {_MOST_LETTERS} letters"
    if text.startswith("ssh://"):
        match = _URI.fullmatch(text)
        if match is None:
            return "it is not ssh://[user@]host[:port]"
        return None if match[1] is None or 0 < int(match[1][:6]) < 65536 else "its port is not 1 to 65535"
    if _HOST.fullmatch(text) is None:
        return "only letters, digits and . _ - : % may be in a name, and @ after a user"
    return None


def parse_hosts(text: str, file: str) -> list[str]:
    """One host a line; blank lines, and what follows a #, are left out. Raises HostsError."""
    found: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        host = line.partition("#")[0].strip(" \t\r")
        if host:
            found[checked(host, f"{file}:{number}")] = None
        if len(found) > MOST_HOSTS:
            raise HostsError(
                f"{file}:{number}: more than {MOST_HOSTS} hosts",
                remedy="ask in several calls, a part in each",
            )
    if not found:
        raise HostsError(f"{file}: no host is in it", remedy="write one host a line")
    return list(found)


def read_hosts(path: Path) -> list[str]:
    """Raises HostsError."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise HostsError(f"{path}: {error.strerror}", remedy="name a file that you may read") from None
    if len(content) > MOST_BYTES:
        raise HostsError(f"{path}: longer than {MOST_BYTES >> 20} MiB", remedy="is it a list of hosts?")
    try:
        return parse_hosts(
            content.decode("utf-8-sig"), str(path)
        )  # with the mark that Windows begins a file with
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise HostsError(f"{path}:{number}: not UTF-8", remedy="is it a list of hosts?") from None


def all_hosts(named: Iterable[str], path: Path | None) -> list[str]:
    """Those of ``--host`` and of the file, each once, in their order. Raises HostsError."""
    found = dict.fromkeys(checked(host, "--host") for host in named)
    return list(found | dict.fromkeys(read_hosts(path) if path is not None else ()))


def remote_words(program: str, words: Sequence[str], *, has_sudo: bool) -> list[str]:
    """What is to run there, word by word. Raises HostsError."""
    if not program or program.startswith("-") or not program.isprintable():
        raise HostsError(
            f"--remote-command: {program[:60]!r} is no program", remedy="give its name, or its path there"
        )
    return [*(["sudo", "-n", "--"] if has_sudo else []), program, *words]


def ssh_argv(ssh: str, host: str, words: Sequence[str], connect_s: float) -> list[str]:
    """The command for one host; the words for the shell there are one argument."""
    options = (*_OPTIONS, f"ConnectTimeout={max(1, round(connect_s))}")
    return [ssh, "-T", *(f"-o{option}" for option in options), "--", host, shlex.join(words)]
