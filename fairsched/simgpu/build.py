# SPDX-License-Identifier: Apache-2.0
"""Compile the engine, the stand-in libraries and the loads, once per version of their sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fairsched.errors import FairschedError

SOURCES = Path(__file__).resolve().parent
FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror")
SHARED = ("-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs")


class SimBuildError(FairschedError):
    """The simulated GPU could not be compiled."""


@dataclass(frozen=True)
class Built:
    """Where the compiled parts are; ``library_dir`` holds nothing but the two libraries of the driver."""

    engine: Path
    load: Path
    library_dir: Path
    dcgm_dir: Path
    """Holds libdcgm.so.4 and nothing else: most hosts have no DCGM."""
    trace_library: Path
    """To be preloaded by who reads the trace of context switches."""


@dataclass(frozen=True)
class _Target:
    name: str
    patterns: tuple[str, ...]
    flags: tuple[str, ...]


_TRACE = "trace/libsimtrace.so"
_TARGETS = (
    _Target("simengine", ("engine_*.c", "sim_mig.c"), ("-lpthread",)),
    _Target("simload", ("simload_*.c",), ("-lpthread", "-ldl", "-lm")),
    _Target(
        "lib/libcuda.so.1", ("cuda_*.c", "sim_mig.c"), (*SHARED, "-Wl,-soname,libcuda.so.1", "-lpthread")
    ),
    _Target(
        "lib/libnvidia-ml.so.1",
        ("nvml_*.c", "sim_mig.c"),
        (*SHARED, "-Wl,-soname,libnvidia-ml.so.1", "-lpthread"),
    ),
    _Target(
        "dcgm/libdcgm.so.4",
        ("dcgm_*.c", "nvml_read.c", "sim_mig.c"),
        (*SHARED, "-Wl,-soname,libdcgm.so.4", "-lpthread"),
    ),
    _Target(_TRACE, ("trace_*.c", "sim_mig.c"), (*SHARED, "-lpthread")),
)


def sources_hash() -> str:
    """Names and contents of all C sources and headers, and the flags they are compiled with."""
    digest = hashlib.sha256(repr((FLAGS, _TARGETS)).encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cache_root() -> Path:
    """$FAIRSCHED_SIM_BUILD, or the system's cache for root and the user's for others."""
    override = os.environ.get("FAIRSCHED_SIM_BUILD")
    if override:
        return Path(override)
    if os.geteuid() == 0:
        return Path("/var/cache/fairsched")
    user = os.environ.get("XDG_CACHE_HOME")
    return (Path(user) if user else Path.home() / ".cache") / "fairsched"


def _compile(target: _Target, out_dir: Path, compiler: str) -> None:
    output = out_dir / target.name
    output.parent.mkdir(exist_ok=True)
    sources = [str(path) for pattern in target.patterns for path in sorted(SOURCES.glob(pattern))]
    command = [compiler, *FLAGS, "-o", str(output), *sources, *target.flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SimBuildError(f"{target.name} does not compile:\n{done.stderr.strip()}")


def _find_compiler() -> str:
    compiler = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if compiler is None:
        raise SimBuildError("the simulated GPU needs a C compiler: install gcc, or set CC")
    return compiler


def build() -> Built:
    """Compile unless it has been done; safe against others doing the same at the same time."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    final = root / f"simgpu-{sources_hash()}"
    if not final.is_dir():
        with open(root / ".simgpu.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.is_dir():
                _build_into(root, final)
    return Built(final / "simengine", final / "simload", final / "lib", final / "dcgm", final / _TRACE)


def _build_into(root: Path, final: Path) -> None:
    compiler = _find_compiler()
    scratch = Path(tempfile.mkdtemp(prefix="simgpu-build-", dir=root))
    try:
        for target in _TARGETS:
            _compile(target, scratch, compiler)
        scratch.chmod(0o755)  # tenants that are not root load the libraries too
        scratch.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
