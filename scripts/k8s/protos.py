# SPDX-License-Identifier: Apache-2.0
"""Writes what follows from fairsched/k8s/proto/*.proto: ``python scripts/k8s/protos.py [--check]``.

Messages and their types (NAME_pb2.py, NAME_pb2.pyi), by the protoc of grpcio-tools; its version is in what it writes,
so that everybody has the same (pyproject.toml, extra dev). No stubs of services: fairsched.k8s.grpc_io needs none.

Exit: 0 written (or nothing to write), 1 something differs or protoc refused, 3 no grpcio-tools.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "fairsched/k8s/proto"
LICENCE = "# SPDX-License-Identifier: Apache-2.0\n"


class ProtoError(Exception):
    """protoc refused; the text is what it said."""


def files() -> dict[Path, str]:
    """All that is written, with its text. Raises ProtoError."""
    with tempfile.TemporaryDirectory() as scratch:
        names = [str(path.relative_to(ROOT)) for path in sorted(PROTOS.glob("*.proto"))]
        out = [f"--python_out={scratch}", f"--pyi_out={scratch}"]
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *out, *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ProtoError(done.stderr.strip())
        made = sorted(path for path in Path(scratch).rglob("*_pb2.py*"))
        return {ROOT / path.relative_to(scratch): LICENCE + path.read_text() for path in made}


def main(arguments: list[str]) -> int:
    if importlib.util.find_spec("grpc_tools") is None:
        print("protos: no grpcio-tools: make setup, or pip install 'fairsched[dev]'", file=sys.stderr)
        return 3
    try:
        wanted = files()
    except ProtoError as error:
        print(f"protos: {error}", file=sys.stderr)
        return 1
    stale = {path for path in PROTOS.glob("*_pb2.py*") if path not in wanted}
    differ = sorted(
        stale | {path for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    )
    for path in differ:
        print(path.relative_to(ROOT))
        if "--check" in arguments:
            continue
        if path in stale:
            path.unlink()
        else:
            path.write_text(wanted[path])
    return 1 if differ and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
