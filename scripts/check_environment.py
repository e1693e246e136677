# SPDX-License-Identifier: Apache-2.0
"""Does this virtual environment really work? ``check_environment.py ROOT run|dev``; exit 0 if it does.

Run by scripts/setup with ``python -I``, so that nothing is imported from the current directory by luck.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
from pathlib import Path

# Distribution -> what it is imported as. bcc is the distribution's, seen through system site-packages.
RUN = {
    "bcrypt": "bcrypt",
    "click": "click",
    "nvidia-ml-py": "pynvml",
    "prometheus-client": "prometheus_client",
    "psutil": "psutil",
    "pydantic": "pydantic",
    "pyyaml": "yaml",
    "rich": "rich",
}
LOOK_ONLY = {
    "matplotlib": "matplotlib",
}
DEV = {
    "clang-format": "clang_format",
    "grafana-foundation-sdk": "grafana_foundation_sdk",
    "grpc-stubs": "grpc-stubs",
    "grpcio": "grpc",
    "grpcio-tools": "grpc_tools",
    "gpustat": "gpustat",
    "hypothesis": "hypothesis",
    "mcp": "mcp",
    "mypy": "mypy",
    "nvitop": "nvitop",
    "pytest": "pytest",
    "pytest-rerunfailures": "pytest_rerunfailures",
    "pytest-timeout": "pytest_timeout",
    "pytest-xdist": "xdist",
    "ruff": "ruff",
    "setuptools": "setuptools",
    "types-protobuf": "google-stubs",
    "types-psutil": "psutil-stubs",
    "types-PyYAML": "yaml-stubs",
}
FROM_PYTHON = {"grafana-foundation-sdk": (3, 11)}
"""What is not wanted on an older Python, as pyproject.toml says."""


def faults(root: Path, profile: str) -> list[str]:
    """What does not work, in words; empty when all does."""
    found: list[str] = []
    for module in ("bcc", *RUN.values()):
        try:
            importlib.import_module(module)
        except Exception as error:  # a broken shared library raises more than ImportError
            found.append(f"import {module}: {error}")
    look = {**LOOK_ONLY, **(DEV if profile == "dev" else {})}
    site = Path(sysconfig.get_path("purelib"))
    found += [
        f"{name} is not installed"
        for name, module in look.items()
        if sys.version_info >= FROM_PYTHON.get(name, (3,))
        and not (site / module).is_dir()
        and importlib.util.find_spec(module) is None
    ]
    spec = importlib.util.find_spec("fairsched")
    if spec is None or spec.origin is None or Path(spec.origin).resolve().parent != root / "fairsched":
        found.append(f"fairsched is not the one in {root}: {spec and spec.origin}")
    # A moved checkout takes .venv along, but the scripts in it still name the old place.
    script = Path(sys.prefix) / "bin" / "fairsched"
    if not script.is_file() or str(Path(sys.prefix) / "bin") not in script.read_text()[:1000]:
        found.append(f"{script} is missing or belongs to another place")
    return found


if __name__ == "__main__":
    problems = faults(Path(sys.argv[1]).resolve(), sys.argv[2])
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)
