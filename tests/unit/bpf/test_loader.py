# SPDX-License-Identifier: Apache-2.0
"""What the loader finds out about a kernel before it compiles anything for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from fairsched.bpf import loader, syscall
from fairsched.bpf.instructions import ATOMICS, EXIT_0, KERNEL_READ
from fairsched.errors import HostUnsupported

Kernel = Callable[..., None]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """``kernel(refuses=(...), error=EINVAL)``: what it says to each program that is loaded."""

    def pretend(*refused: bytes, error: int = errno.EINVAL) -> None:
        def load_program(_kind: int, insns: bytes, *_args: object, **_more: object) -> int:
            if insns in refused:
                raise OSError(error, os.strerror(error))
            return os.open(os.devnull, os.O_RDONLY)

        monkeypatch.setattr(syscall, "load_program", load_program)

    monkeypatch.setattr(loader, "from_compiled", lambda *_: pytest.fail("it compiled"))
    return pretend


def test_without_atomics_nothing_is_compiled_in_vain(kernel: Kernel) -> None:
    kernel(ATOMICS)
    with pytest.raises(HostUnsupported) as refused:
        loader.load(multi=False)
    assert "atomic" in str(refused.value)
    assert "kernel >= 5.12" in refused.value.remedy


def test_who_may_load_nothing_is_not_told_of_atomics(kernel: Kernel) -> None:
    kernel(ATOMICS, EXIT_0, KERNEL_READ, error=errno.EPERM)
    with pytest.raises(HostUnsupported) as refused:
        loader.load(multi=False)
    assert "Operation not permitted" in str(refused.value)
    assert "root or CAP_BPF" in refused.value.remedy


@pytest.mark.parametrize("reads", [True, False])
def test_a_locked_down_kernel_gets_programs_that_do_not_read_it(
    reads: bool, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel(*([] if reads else [KERNEL_READ]))
    asked: list[tuple[list[str], list[str]]] = []

    def from_compiled(
        _source: str, _names: object, inputs: list[str], defines: Callable[[], list[str]], _use
    ):
        asked.append((inputs, defines()))
        raise HostUnsupported("enough", remedy="none")

    monkeypatch.setattr(loader, "from_compiled", from_compiled)
    monkeypatch.setattr(loader, "_end_defines", lambda: ["FS_TASK_FLAGS=44"])
    with pytest.raises(HostUnsupported):
        loader.load(multi=False)
    ((inputs, defines),) = asked
    assert f"reads={reads}" in inputs, "what is kept for one kernel is not for the other"
    assert defines == (["FS_TASK_FLAGS=44"] if reads else [])
