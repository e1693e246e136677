# SPDX-License-Identifier: Apache-2.0
"""Many real sshd's on one machine, in namespaces of their own.

Problem: a machine that tests seldom has an sshd, nor the user and the directory that it wants; and it is to have
none afterwards.
Approach: Debian's package is unpacked into a cache and not installed. The sshd's run in a mount, network and process
namespace with another /etc/passwd, /etc/shadow and /run; they end with its first process. Each has an address of
127.0.1.0/24. ssh takes the home from /etc/passwd, so the client runs in the same namespaces.
Terms: *there* is what an sshd runs: a program that is told its address by SSH_CONNECTION.
Errors: what cannot be had here skips, with a reason that begins with ``extra:``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("FAIRSCHED_SSHD_CACHE", "/var/cache/fairsched-vm/sshd"))
PACKAGES = ("openssh-server", "openssh-sftp-server", "libwrap0")
FIRST = """
import fcntl, os, socket, struct, subprocess, sys
home, sshd, hangs, serves = sys.argv[1], sys.argv[2], sys.argv[3].split(), sys.argv[4].split()
for name in ("passwd", "shadow"):
    subprocess.run(["mount", "--bind", f"{home}/{name}", f"/etc/{name}"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
os.mkdir("/run/sshd", 0o755)
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", 0x49))  # SIOCSIFFLAGS: up
silent = []
for address in hangs:
    silent.append(socket.create_server((address, 22)))
for address in serves:
    subprocess.run([sshd, "-f", f"{home}/sshd_config", "-o", f"ListenAddress={address}"], check=True)
print("ready", flush=True)
sys.stdin.read()
"""
CONFIG = """HostKey {home}/host_key
AuthorizedKeysFile {home}/key.pub
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
"""


def sshd_program() -> tuple[Path, str]:
    """The program, and where its libraries are. Skips."""
    found = shutil.which("sshd", path="/usr/sbin")
    if found is not None:
        return Path(found), ""
    root = CACHE / "root"
    if not (root / "usr/sbin/sshd").exists():
        _fetch(root)
    return root / "usr/sbin/sshd", ":".join(str(path.parent) for path in root.rglob("libwrap.so.0"))


def _fetch(root: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.skip("extra: no sshd, and no apt-get to fetch one with")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as place:
        fetch = ["apt-get", "-q", "download", *PACKAGES]
        try:
            run = subprocess.run(fetch, cwd=place, capture_output=True, text=True, timeout=120, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("extra: no sshd, and the packages did not come within 2 min")
        if run.returncode:
            pytest.skip(f"extra: no sshd, and it cannot be fetched: {run.stderr.strip()[-200:]}")
        for package in Path(place).glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, f"{place}/root"], check=True)
        Path(f"{place}/root").rename(root)


class Sshds:
    """While it is open, the sshd's are there. ``home``: of the user who asks, and who is asked."""

    def __init__(self, home: Path, serves: list[str], hangs: list[str], there: str) -> None:
        sshd, libraries = sshd_program()
        self.home = home
        self._write(there)
        argv = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        argv += [sys.executable, "-I", "-c", FIRST, str(home), str(sshd), " ".join(hangs), " ".join(serves)]
        self._outer = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )
        assert self._outer.stdout is not None
        if self._outer.stdout.readline() != "ready\n":
            self.close()
            raise AssertionError("the sshd's did not start")
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text()
        self._first = children.split()[0]

    def _write(self, there: str) -> None:
        home = self.home
        (home / ".ssh").mkdir(parents=True)
        for name in ("key", "host_key"):
            keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)]
            subprocess.run(keygen, check=True)
        (home / "passwd").write_text(
            f"root:x:0:0:root:{home}:/bin/sh\nsshd:x:999:65534::/run/sshd:/usr/sbin/nologin\n"
            "nobody:x:65534:65534::/:/usr/sbin/nologin\n"
        )
        (home / "shadow").write_text("root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n")
        (home / "shadow").chmod(0o600)
        (home / "sshd_config").write_text(CONFIG.format(home=home))
        (home / ".ssh/config").write_text(f"IdentityFile {home}/key\nIdentitiesOnly yes\n")
        (home / "there").write_text(there)
        (home / "there").chmod(0o755)
        self.know_hosts()

    def know_hosts(self) -> None:
        key = (self.home / "host_key.pub").read_text()
        (self.home / ".ssh/known_hosts").write_text(f"127.0.* {key}")

    def fairsched(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command, as the user who asks."""
        main = [sys.executable, "-c", "from fairsched.cli import main; main()", *words]
        argv = ["nsenter", "--target", self._first, "--mount", "--net", "--pid", "--", *main]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)

    def close(self) -> None:
        """With the first process of the namespace all others in it end."""
        self._outer.kill()
        self._outer.wait()
        for pipe in (self._outer.stdin, self._outer.stdout):
            if pipe is not None:
                pipe.close()
