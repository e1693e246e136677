# SPDX-License-Identifier: Apache-2.0
"""Programs are compiled once; what is kept of them is as good as new, and a damaged file costs seconds and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = """
import json, sys
from fairsched.bpf import loader, syscall
maps, programs = loader.load(multi=syscall.has_uprobe_multi())
print(json.dumps({"maps": sorted(maps), "programs": sorted(programs), "compiled": "bcc" in sys.modules}))
"""
SET = """
import json, sys
from fairsched.bpf import loader
from fairsched.bpf.program_sets import SETS
fds, refused = loader.load_set(SETS["nvidia_ioctl"], ["life", "tracepoint"], {"FS_PLAIN_NODES": 1}, [])
print(json.dumps({"maps": sorted(fds), "programs": sorted(refused), "compiled": "bcc" in sys.modules}))
"""


@pytest.mark.parametrize("code", [LOAD, SET], ids=["gpu-time", "set"])
def test_programs_are_compiled_once_and_again_when_their_file_is_damaged(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRSCHED_BPF_CACHE", str(tmp_path / "bpf"))

    def load() -> dict[str, object]:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found

    first = load()
    assert first["compiled"] is True
    again = load()
    assert again == {**first, "compiled": False}
    (file,) = (tmp_path / "bpf").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    assert load() == first
    assert file.read_bytes() == data
