# SPDX-License-Identifier: Apache-2.0
"""How peers' own code is put between tenants and libcuda: one controller each for HAMi-core, nvshare and XSched.

Problem. Each has its own way in (a preloaded library, a libcuda of its own), its own knobs, and a daemon or none; it
lies where its user has built it, and must be gone afterwards.

Approach. A peer is a controller like the others (fair/controllers.py). On entry it starts its daemon; then it says what
the environment of a tenant's processes has besides, and which libcuda they load. What a tenant is owed becomes the
number that the peer understands. Everything else is left at the peer's defaults.

Terms. peer: somebody else's program. part: what a tenant is owed of the GPU when all want it.
"""

from __future__ import annotations

import abc
import contextlib
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fair.controllers import Controller
from benchmarks.fair.reference import entitled
from benchmarks.fair.scenario import Play
from benchmarks.rig import BenchError, Rig, wait_until
from fairsched.errors import ConfigError

_READY_S = 10.0
_NVSHARE_SOCKET = Path("/var/run/nvshare/scheduler.sock")
"""Compiled in."""
_MOST_UTILISATION = 100


class Peer(Controller, abc.ABC):
    """One that is put between the tenants and libcuda."""

    libcuda: str | None = None
    """What tenants load instead."""

    @abc.abstractmethod
    def env(self, leaf: str) -> dict[str, str]:
        """What the environment of this tenant's processes has besides."""


class HamiCore(Peer):
    """A cap per tenant, in percent; the processes of a tenant share it as those of a container do."""

    def __init__(self, library: Path) -> None:
        self._library = _there(library, "--hami-core", "libvgpu.so")

    @contextlib.contextmanager
    def running(self, rig: Rig, play: Play, directories: Mapping[str, str]) -> Iterator[Controller]:
        self._directory, self._parts = rig.directory, parts(play)
        yield self

    def env(self, leaf: str) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "CUDA_REDIRECT": str(self._library),
            "CUDA_DEVICE_SM_LIMIT": str(max(1, round(100 * self._parts[leaf]))),
            "GPU_CORE_UTILIZATION_POLICY": "force",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(self._directory / f"{leaf.replace('/', '.')}.cache"),
            "LIBCUDA_LOG_LEVEL": "0",
        }


class Nvshare(Peer):
    """The GPU for one process at a time, each for the shortest quantum it can be given: one second."""

    def __init__(self, directory: Path) -> None:
        self._library = _there(directory / "libnvshare.so", "--nvshare", "its directory src, built")
        self._scheduler = _there(directory / "nvshare-scheduler", "--nvshare", "its directory src, built")
        self._ctl = _there(directory / "nvsharectl", "--nvshare", "its directory src, built")

    @contextlib.contextmanager
    def running(self, rig: Rig, play: Play, directories: Mapping[str, str]) -> Iterator[Controller]:
        if _answers(socket.AF_UNIX, str(_NVSHARE_SOCKET)):
            raise BenchError("an nvshare-scheduler runs already", remedy="stop it first")
        (rig.libcuda.parent / "libcuda.so").symlink_to(rig.libcuda.name)  # it looks for that name
        try:
            with _daemon([str(self._scheduler)], rig, socket.AF_UNIX, str(_NVSHARE_SOCKET)):
                _run(str(self._ctl), "-T", "1")
                yield self
        finally:
            with contextlib.suppress(OSError):
                _NVSHARE_SOCKET.unlink()
                _NVSHARE_SOCKET.parent.rmdir()

    def env(self, leaf: str) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library)}


class Xsched(Peer):
    """Its server with the policy for shares (PUP), and level 1: what it has for every GPU.

    Shares are per process: a tenant's is split evenly among its own. The largest is 100, its limit, so that whole
    numbers round least.
    """

    def __init__(self, directory: Path, **settings: int) -> None:
        """``settings``: of XSCHED_AUTO_XQUEUE_*; the others are its defaults."""
        self._server = _there(directory / "bin/xserver", "--xsched", "its directory output, built")
        self._shim = _there(directory / "lib/libshimcuda.so", "--xsched", "its directory output, built")
        self._settings = settings

    @contextlib.contextmanager
    def running(self, rig: Rig, play: Play, directories: Mapping[str, str]) -> Iterator[Controller]:
        processes = {
            leaf: sum(one.processes for one in tenant.loads) for leaf, tenant in play.leaves().items()
        }
        each = {leaf: part / processes[leaf] for leaf, part in parts(play).items()}
        self._utilisation = {
            leaf: max(1, round(_MOST_UTILISATION * part / max(each.values()))) for leaf, part in each.items()
        }
        self._rig, self.libcuda = rig, str(self._shim)
        self._cuxtra = rig.directory / "cuxtra.so"
        source = Path(__file__).with_name("peers_cuxtra.c")
        _run("cc", "-O2", "-shared", "-fPIC", "-o", str(self._cuxtra), str(source))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with _daemon([str(self._server), "PUP", str(port)], rig, socket.AF_INET, ("127.0.0.1", port)):
            yield self

    def env(self, leaf: str) -> dict[str, str]:
        settings = {"level": 1, "utilization": self._utilisation[leaf], **self._settings}
        return {
            "LD_PRELOAD": str(self._cuxtra),
            "XSCHED_CUDA_LIB": str(self._rig.libcuda),
            "XSCHED_SCHEDULER": "GLB",
            "XSCHED_AUTO_XQUEUE": "ON",
            **{f"XSCHED_AUTO_XQUEUE_{name.upper()}": str(value) for name, value in settings.items()},
        }


def _there(path: Path, option: str, what: str) -> Path:
    """The path, absolute. Raises ConfigError when nothing lies there."""
    if not path.exists():
        raise ConfigError(f"{option}: {path} is not there", remedy=f"give {what}; docs/fairness.md builds it")
    return path.resolve()


def _run(*command: str) -> None:
    """Raises BenchError with what it said."""
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or ""
        raise BenchError(f"{command[0]}: {error} {said[-400:]}".rstrip()) from error


def _answers(family: socket.AddressFamily, address: Any) -> bool:
    with socket.socket(family) as probe, contextlib.suppress(OSError):
        probe.connect(address)
        return True
    return False


@contextlib.contextmanager
def _daemon(
    command: Sequence[str], rig: Rig, family: socket.AddressFamily, address: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A peer's daemon, there when it answers; ended afterwards. Raises BenchError with the end of its output."""
    log = rig.directory / "peer.log"
    try:
        with open(log, "wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    except OSError as error:
        raise BenchError(f"{command[0]} does not start: {error.strerror}") from error
    try:
        try:
            wait_until(lambda: _answers(family, address), _READY_S, f"{command[0]} answers")
        except BenchError as error:
            raise BenchError(f"{error}; its output ends: {log.read_text()[-400:]}") from error
        yield process
        if process.poll() is not None:
            raise BenchError(f"{command[0]} ended by itself; its output ends: {log.read_text()[-400:]}")
    finally:
        process.kill()
        process.wait()


def parts(play: Play) -> dict[str, float]:
    """What each leaf is owed when all want the GPU."""
    leaves = list(play.leaves())
    owed = entitled(np.ones((1, len(leaves)), dtype=bool), leaves, play.specs())[0]
    return dict(zip(leaves, map(float, owed), strict=True))
