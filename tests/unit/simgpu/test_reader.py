# SPDX-License-Identifier: Apache-2.0
"""Reading beside an engine that writes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from fairsched.simgpu import layout
from fairsched.simgpu.reader import _GpuFile

_COUNTER_BYTES = layout.Gpu.lock_seq.size


def written(lock_seq: int, contexts: int) -> bytes:
    """The mapped file with so many contexts, all of them executing, each in a seat."""
    header = layout.Gpu(magic=layout.MAGIC, abi=layout.ABI, lock_seq=lock_seq)
    header.share_count = header.truth_count = header.residency_count = contexts
    truths = (layout.Truth * layout.MAX_TRUTHS)()
    stays = (layout.Residency * layout.MAX_RESIDENCIES)()
    for i in range(contexts):
        truths[i].id = truths[i].seat = stays[i].id = i + 1
    page = bytearray(layout.GPU_BYTES)
    for at, part in ((0, header), (layout.RESIDENCIES_OFFSET, stays), (layout.TRUTHS_OFFSET, truths)):
        page[at : at + ctypes.sizeof(part)] = bytes(part)
    return bytes(page)


class Overtaken:
    """A mapping that is written anew while somebody copies the header: one side of `cut` is copied as it was before."""

    def __init__(self, before: bytes, after: bytes, *, cut: int, is_tail_first: bool) -> None:
        self._before, self._after = before, after
        self._cut, self._is_tail_first = cut, is_tail_first
        self._is_written = False

    def __getitem__(self, at: slice) -> bytes:
        if self._is_written:
            return self._after[at]
        if at.stop - (at.start or 0) <= _COUNTER_BYTES:
            return self._before[at]
        self._is_written = True
        first, last = (self._after, self._before) if self._is_tail_first else (self._before, self._after)
        return first[: self._cut] + last[self._cut : at.stop]


@pytest.mark.parametrize("is_tail_first", [False, True])
@pytest.mark.parametrize("cut", range(0, layout.SAMPLES_OFFSET, 8))
def test_a_copy_overtaken_by_the_engine_is_made_again(tmp_path: Path, cut: int, is_tail_first: bool) -> None:
    path = tmp_path / "gpu0"
    before, after = written(8, 0), written(10, 2)
    path.write_bytes(before)
    gpu = _GpuFile(path)
    gpu.close()
    gpu._map = Overtaken(before, after, cut=cut, is_tail_first=is_tail_first)  # type: ignore[assignment]
    header, truths, _ = gpu.snapshot()
    assert (header.share_count, [one.seat for one in truths]) == (2, [1, 2])
    gpu._map = Overtaken(before, after, cut=cut, is_tail_first=is_tail_first)  # type: ignore[assignment]
    found = gpu.residencies_since(0)
    assert (found.count, [stay.context_id for stay in found.stays]) == (2, [1, 2])
