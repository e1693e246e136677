# SPDX-License-Identifier: Apache-2.0
"""What this machine has: PyTorch, a GPU it can use, NVML, libcuda. Each missing thing comes with its remedy.

The tenants' Python is asked by running it: it need not be ours, and importing PyTorch here would make this process a
user of the GPU.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairsched.errors import HostUnsupported
from fairsched.gpu.nvml import Gpu, Nvml

_ASK_S = 120.0
_ASK = """
import json, sys
facts = {"python": sys.version.split()[0], "torch": None, "cuda": None, "is_available": False, "why": "", "maps": []}
try:
    import torch
    facts.update(torch=torch.__version__, cuda=torch.version.cuda)
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        facts["is_available"] = True
    else:
        facts["why"] = "torch.cuda.is_available() is False"
except ImportError as error:
    facts["why"] = str(error)
except Exception as error:
    facts["why"] = repr(error)
with open("/proc/self/maps") as maps:
    facts["maps"] = sorted({line.split()[-1] for line in maps if "libcuda.so" in line})
print(json.dumps(facts))
"""
_INSTALL = "{python} -m pip install torch"


@dataclass(frozen=True)
class Facts:
    """A machine the checks can run on."""

    python: str
    torch: str
    cuda: str
    gpu: Gpu
    libcuda: Path
    driver: str | None = None

    def to_plain(self) -> dict[str, Any]:
        return {
            "python": self.python,
            "torch": self.torch,
            "cuda": self.cuda,
            "driver": self.driver,
            "gpu": self.gpu.name,
            "gpu_uuid": self.gpu.uuid,
            "gpu_memory_bytes": self.gpu.memory_total_bytes,
            "libcuda": self.libcuda.name,
        }


def ask(python: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Raises HostUnsupported when that Python cannot be run."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK], env=env, capture_output=True, text=True, timeout=_ASK_S, check=False
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise HostUnsupported(
            f"{python} does not say what it has: {error}", remedy="name a Python with PyTorch: --python PATH"
        ) from error
    return answer


def missing(
    answer: Mapping[str, Any], gpus: tuple[Gpu, ...], nvml_error: str | None, index: int
) -> list[str]:
    """Everything that is missing, each with what to do (pure)."""
    found = []
    if answer["torch"] is None:
        command = _INSTALL.format(python="PYTHON")
        found.append(
            f"PyTorch ({answer['why']}): {command}, and --python PYTHON where that is not fairsched's own"
        )
    if not gpus:
        found.append(
            f"an NVIDIA GPU and its driver (NVML: {nvml_error or 'no device'}): nvidia-smi must list it"
        )
    elif index >= len(gpus):
        found.append(f"GPU {index}: there are {len(gpus)}, from 0 on; choose with --gpu")
    if answer["torch"] is not None and not answer["is_available"]:
        found.append(
            f"a GPU PyTorch can use ({answer['why']}): a build for CUDA, and a driver new enough for it"
        )
    if answer["is_available"] and not answer["maps"]:
        found.append("libcuda.so.1 as a file: none is mapped into a process that uses CUDA")
    return found


def driver_version() -> str | None:
    """As NVML, which must be open, says it."""
    import pynvml

    try:
        said = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None
    return said.decode() if isinstance(said, bytes) else str(said)


def look(python: str, env: Mapping[str, str], index: int) -> Facts:
    """Raises HostUnsupported that names everything that is missing."""
    nvml = Nvml()
    try:
        answer = ask(python, env)
        lacking = missing(answer, nvml.gpus, nvml.error, index)
        if lacking:
            raise HostUnsupported(
                "the GPU checks need " + "; ".join(lacking),
                remedy="or try their code path without a GPU: python -m benchmarks.gpu --simulated",
            )
        gpu, libcuda = nvml.gpus[index], Path(answer["maps"][0])
        return Facts(answer["python"], answer["torch"], answer["cuda"], gpu, libcuda, driver_version())
    finally:
        nvml.close()
