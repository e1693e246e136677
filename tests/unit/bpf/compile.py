# SPDX-License-Identifier: Apache-2.0
"""gcc on the headers of bpf/: what the C says, without a kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import fairsched.bpf

BPF = Path(fairsched.bpf.__file__).resolve().parent
_FLAGS = (
    "-std=gnu11",
    "-Wall",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-D__always_inline=inline __attribute__((always_inline))",
    f"-I{BPF}",
)


def gcc(directory: Path, text: str, *flags: str) -> Path:
    """The file gcc makes of a C text."""
    source, out = directory / "source.c", directory / "out"
    source.write_text(text)
    subprocess.run(["gcc", *_FLAGS, *flags, "-o", str(out), str(source)], check=True, timeout=240)
    return out
