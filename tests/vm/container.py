# SPDX-License-Identifier: Apache-2.0
"""Real containers: runc starts them, with a PID namespace, a cgroup and a device program of the runtime's own.

What runs inside is an actor (actor.py). Its file system is the guest's /usr and this checkout, read-only; it sees the
device nodes it is given, and may open those that its runtime was told to allow.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Collection
from pathlib import Path

from tests.vm import actor as actors
from tests.vm.actor import Actor

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"
RUNTIME = "runc"
START_S = 120.0
MAJOR, CONTROL = 195, 255
NAMESPACES = ("pid", "mount", "ipc", "uts", "cgroup")
CAPABILITIES = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_MKNOD", "CAP_SETUID")
"""As a runtime's default is: nothing that could look beyond the container."""


def why_not() -> str | None:
    """Why no container can be run here; None = it can."""
    return None if shutil.which(RUNTIME) else f"{RUNTIME} is not installed: sudo make setup-vm"


class Container:
    """One that runs. ``cgroup``: its path below the mount of cgroup v2, for the runtime to make and remove."""

    def __init__(
        self, where: Path, name: str, cgroup: str, allowed: Collection[int], everybody: list[Actor]
    ) -> None:
        """``allowed``: minors of /dev/nvidia* that the runtime's own rule lets it open. It has nodes for all four."""
        self.name, self.cgroup = name, cgroup
        self._state, self._bundle = where / "state", where / name
        address = f"fairsched-container-{os.getpid()}-{name}"
        self._make_bundle(address, allowed)
        self._log = self._bundle / "log"
        with actors.listen(address) as server, self._log.open("wb") as log:
            server.settimeout(START_S)
            self._call("run", "--detach", "--bundle", str(self._bundle), name, output=log.fileno())
            try:
                channel, _ = server.accept()
            except TimeoutError:
                said = self._log.read_text(errors="replace")[-2000:]
                self.delete()
                raise AssertionError(f"the program of container {name} does not report:\n{said}") from None
        self.actor = self._actor(channel, everybody)

    def _actor(self, channel: socket.socket, everybody: list[Actor]) -> Actor:
        return Actor(channel, everybody).greet()

    def _call(self, *words: str, output: int | None = None) -> None:
        command = [RUNTIME, "--root", str(self._state), *words]
        out = subprocess.PIPE if output is None else output
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False
        )
        if done.returncode != 0:
            said = self._log.read_bytes() if output is not None else done.stdout
            raise AssertionError(f"{' '.join(command)}: {said.decode(errors='replace').strip()[-2000:]}")

    def update(self, *options: str) -> None:
        """What a kubelet does to a running container."""
        self._call("update", *options, self.name)

    def delete(self) -> None:
        """End it, with everything in it."""
        self._call("delete", "--force", self.name)

    def _make_bundle(self, address: str, allowed: Collection[int]) -> None:
        rootfs = self._bundle / "rootfs"
        rootfs.mkdir(parents=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            (rootfs / name).symlink_to(f"usr/{name}")
        (self._bundle / "config.json").write_text(json.dumps(self._spec(address, allowed)))

    def _spec(self, address: str, allowed: Collection[int]) -> dict[str, object]:
        """OCI's config.json."""
        minors = [0, 1, 2, 3, CONTROL]
        paths = {minor: f"/dev/nvidia{'ctl' if minor == CONTROL else minor}" for minor in minors}
        number = {"type": "c", "major": MAJOR}
        rules = [{**number, "minor": minor, "allow": True, "access": "rwm"} for minor in [*allowed, CONTROL]]
        held = {kind: list(CAPABILITIES) for kind in ("bounding", "effective", "permitted")}
        return {
            "ociVersion": "1.0.2",
            "root": {"path": "rootfs", "readonly": True},
            "hostname": self.name,
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": [PYTHON, "-m", "tests.vm.actor", address],
                "env": ["PATH=/usr/bin", f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1", "LC_ALL=C.UTF-8"],
                "cwd": "/",
                "capabilities": held,
                "noNewPrivileges": True,
            },
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {
                    "destination": "/dev",
                    "type": "tmpfs",
                    "source": "tmpfs",
                    "options": ["nosuid", "mode=755"],
                },
                *(_bind(path) for path in ("/usr", str(ROOT))),
            ],
            "linux": {
                "cgroupsPath": self.cgroup,
                "namespaces": [{"type": kind} for kind in NAMESPACES],
                "devices": [
                    {**number, "path": paths[one], "minor": one, "fileMode": 0o666, "uid": 0, "gid": 0}
                    for one in minors
                ],
                "resources": {"devices": [{"allow": False, "access": "rwm"}, *rules]},
            },
        }


def _bind(path: str) -> dict[str, object]:
    return {"destination": path, "type": "none", "source": path, "options": ["bind", "ro", "nosuid"]}
