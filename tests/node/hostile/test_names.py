# SPDX-License-Identifier: Apache-2.0
"""Names that a tenant chooses: of its cgroups, processes and libraries, with escapes for terminals in them, words of
our own log, and as long as the kernel allows. Nobody is spoken of but who did it, and a terminal gets text only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, Site, logged
from tests.node.hostile import files
from tests.support import let_run, wait_until

FORGED = "x'\" decision=hold tenant=chat misbehaviour=unseen"
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|" + r'"(?:[^"\\]|\\.)*"')
"""Values in the log."""
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e"
NAMES = {
    "forged": FORGED,
    "escapes": ESCAPES,
    "long": "n" * 255,
    "odd bytes": "caf\udce9 '\"\\ $(reboot) %s {0}",
}
_PROGRAM = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(15, b"\\x1b[31mx\\nten=1", 0, 0, 0)
cuda = ctypes.CDLL(sys.argv[1])
context = ctypes.c_void_p()
cuda.cuInit(0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
print(flush=True)
signal.pause()
"""
LONG_ARGUMENT = 100_000


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a_name_is_only_ever_a_name(site: Site, tmp_path: Path, name: str) -> None:
    site.configure({"chat": {"weight": 4}, "hog": {}})
    inner = site.cgroup("hog") / name
    inner.mkdir()
    site.start()
    site.attach()
    site.spawn("chat", STEADY)
    site.spawn("hog", replace(GREEDY, seed=3), cgroup=inner)
    directory = tmp_path / name
    directory.mkdir()
    (directory / files.LIBRARY).write_bytes(files.elf(10**9, name.encode("utf-8", "surrogateescape")[:64]))
    argument = (ESCAPES + FORGED) * (LONG_ARGUMENT // len(ESCAPES + FORGED))
    process = site.host.popen(
        [sys.executable, "-S", "-c", _PROGRAM, str(site.library_dir / files.LIBRARY), argument],
        inner,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    with files.mapping(site, "hog", directory):
        site.wait_held("hog")
        wait_until(
            lambda: logged(site.log(), "library=.* probes=0 error="), PATIENCE_S, "the library is spoken of"
        )
        let_run(2)
        said = site.log() + "".join(
            done.stdout + done.stderr
            for done in (
                site.cli(*args, "--socket", str(site.socket_path))
                for args in (("status",), ("ps",), ("explain", "hog"), ("events",))
            )
        )
    process.kill()
    process.communicate()
    bad = {char for char in said if (ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) < 0xA0}
    assert not bad, bad
    assert "\u202e" not in said, "nor what turns text around"
    words = _QUOTED.sub("''", site.log())
    assert "level=" in words and "tenant=chat misbehaviour" not in words
    assert logged(site.log(), "tick failed|housekeeping failed|Traceback") == []
    assert json.dumps(site.status())
