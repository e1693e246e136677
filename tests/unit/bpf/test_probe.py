# SPDX-License-Identifier: Apache-2.0
"""What the probe says about a compiler that fails, and about a loader that dies without a word."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from fairsched.bpf import gpu_time, probe
from fairsched.bpf.child import exit_words
from fairsched.bpf.instructions import ATOMICS, instruction
from fairsched.bpf.probe import judge_compiler, llvm_version
from fairsched.errors import HostUnsupported

WHICH = json.dumps({"bcc": "0.18.0", "llvm": "11"})
ABORT = "LLVM ERROR: Cannot select: 0x3844e5d8: i64,ch = AtomicCmpSwap\nIn function: on_probe"


def test_a_compiler_that_works_is_named() -> None:
    fact = judge_compiler(0, WHICH + "\n", "")
    assert (fact.is_ok, fact.detail) == (True, "bcc 0.18.0, LLVM 11")


def test_a_compiler_that_aborts_is_named_with_its_last_words_and_a_remedy() -> None:
    fact = judge_compiler(-signal.SIGABRT, WHICH, ABORT)
    assert not fact.is_ok
    assert "LLVM 11 was killed by SIGABRT; LLVM ERROR: Cannot select" in fact.detail
    assert "Debian 12" in fact.remedy


def test_an_error_of_ours_keeps_its_remedy() -> None:
    out = json.dumps({"error": "bcc cannot be imported: x", "remedy": "apt install python3-bpfcc"})
    fact = judge_compiler(3, out, "")
    assert (fact.is_ok, fact.remedy) == (False, "apt install python3-bpfcc")
    assert "cannot be imported" in fact.detail


def test_a_child_that_says_nothing_still_gives_a_fact() -> None:
    fact = judge_compiler(-signal.SIGKILL, "", "")
    assert (fact.is_ok, fact.detail) == (False, "bcc was killed by SIGKILL")


@pytest.mark.parametrize(
    ("maps", "version"),
    [
        ("7f00 r-xp 0 fe:00 1 /usr/lib/x86_64-linux-gnu/libLLVM-14.so.1\n", "14"),
        ("7f00 r-xp 0 fe:00 1 /lib/libLLVM.so.19.1\n", "19"),
        ("7f00 r-xp 0 fe:00 1 /lib/libclang-cpp.so.14\n", None),
    ],
)
def test_the_version_of_llvm_is_read_from_what_is_mapped(maps: str, version: str | None) -> None:
    assert llvm_version(maps) == version


def test_the_end_of_a_process_is_put_in_words() -> None:
    assert exit_words(-6) == "was killed by SIGABRT"
    assert exit_words(2) == "ended with status 2"
    assert exit_words(-200) == "was killed by signal 200"


def test_instructions_are_laid_out_as_the_kernel_wants_them() -> None:
    assert instruction(0xDB, 10, 1, -8, 0xF1) == bytes.fromhex("db1af8fff1000000")
    assert len(ATOMICS) % 8 == 0


def _loader(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have GpuTimeProbe start this instead of the loader."""
    real = subprocess.Popen

    def start(_argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(gpu_time.subprocess, "Popen", start)


@pytest.mark.parametrize(
    ("code", "says", "remedy"),
    [
        ("import os; os.abort()", "SIGABRT", "LLVM"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL", "memory"),
        ("raise SystemExit(7)", "status 7", "stderr"),
    ],
)
def test_a_loader_that_dies_without_a_word_is_a_host_that_cannot(
    code: str, says: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _loader(code, monkeypatch)
    with pytest.raises(HostUnsupported, match=says) as caught:
        gpu_time.GpuTimeProbe()
    assert remedy in caught.value.remedy


def test_the_compilers_child_is_tried_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        assert argv[1:] == ["-m", "fairsched.bpf.probe"]
        return subprocess.CompletedProcess(argv, -signal.SIGABRT, WHICH, ABORT)

    monkeypatch.setattr(probe.subprocess, "run", run)
    assert not probe.compiler().is_ok


@pytest.mark.parametrize(("lacks", "is_tried"), [("", True), ("ring buffer", True), ("atomics", False)])
def test_the_compiler_is_not_blamed_for_what_the_kernel_lacks(
    lacks: str, is_tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_try", lambda name, *_: probe.Fact(name, name != lacks))
    monkeypatch.setattr(probe, "compiler", lambda: probe.Fact("compiler", True))
    assert ("compiler" in {fact.name for fact in probe.probe()}) is is_tried
