# SPDX-License-Identifier: Apache-2.0
"""What DRM drivers say in fdinfo is read as the kernel documents it, and nothing else of it is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairsched.gpu.fdinfo import Client, Engine, parse
from tests.unit.gpu.fake_drm import RECORDED


def read(name: str) -> Client:
    found = parse(RECORDED[name])
    assert found is not None
    return found


def told(*lines: str) -> Client:
    found = parse("\n".join(("drm-driver:\tamdgpu", *lines)).encode())
    assert found is not None
    return found


def test_amdgpu() -> None:
    one = read("amdgpu")
    assert (one.driver, one.pdev, one.client_id) == ("amdgpu", "0000:08:00.0", 217)
    assert one.vram_bytes == 2068 << 10
    assert one.regions["gtt"].held == 8192 << 10
    assert one.engines == {"gfx": Engine(107322799)}


def test_xe() -> None:
    one = read("xe")
    assert one.vram_bytes == 23992 << 10
    assert one.regions["vram0"].shared == 16 << 20
    assert one.engines["rcs"] == Engine(None, 28257900, 7655183225)
    assert one.engines["ccs"].capacity == 4


def test_i915_holds_what_is_resident_not_what_was_asked_for() -> None:
    one = read("i915")
    assert one.vram_bytes == 3 << 20
    assert one.regions["local0"].total == 4 << 30
    assert one.engines["render"].busy_ns == 5 * 10**9
    assert one.engines["video"].capacity == 2


@pytest.mark.parametrize(
    ("value", "size"),
    [("7", 7), ("7 KiB", 7 << 10), ("7 MiB", 7 << 20), ("-7 KiB", None), ("7 kB", None), ("7 GiB", None),
     ("7.5 KiB", None), ("", None), ("x", None),
     ("9" * 21, None), (str(2**64 - 1), 2**64 - 1), ("0", 0), ("\u0667", None)],
)  # fmt: skip
def test_units(value: str, size: int | None) -> None:
    assert told(f"drm-resident-vram:\t{value}").vram_bytes == size


def test_a_time_is_in_nanoseconds_or_not_known() -> None:
    assert told("drm-engine-gfx: 5 ns").engines["gfx"].busy_ns == 5
    assert told("drm-engine-gfx: 5 us").engines == {}


def test_of_two_lines_with_one_key_the_first_counts() -> None:
    assert told("drm-resident-vram: 1 KiB", "drm-resident-vram: 9 KiB").vram_bytes == 1024


def test_resident_wins_over_its_old_alias_and_over_the_total() -> None:
    both = told("drm-memory-vram: 1 KiB", "drm-resident-vram: 2 KiB", "drm-total-vram: 3 KiB")
    assert both.vram_bytes == 2048
    assert told("drm-total-vram: 3 KiB").vram_bytes == 3072


def test_what_is_not_said_is_not_known_and_no_memory_of_its_own_is_none() -> None:
    assert told().vram_bytes is None
    assert told("drm-resident-system0: 5 KiB").vram_bytes == 0
    assert told("drm-engine-capacity-gfx: 0").engines == {}
    assert told("drm-engine-gfx: 1 ns", "drm-engine-capacity-gfx: 0").engines["gfx"].capacity == 1
    assert told("drm-pdev: ../../etc").pdev is None


def test_what_is_no_client_of_drm_is_none() -> None:
    assert parse(b"pos:\t0\nflags:\t02\n") is None
    assert parse(b"") is None


KEYS = ["drm-driver", "drm-pdev", "drm-client-id", "drm-engine-a", "drm-engine-capacity-a", "drm-cycles-a",
        "drm-total-cycles-a", "drm-memory-vram", "drm-resident-vram", "drm-total-", "drm-", "other"]  # fmt: skip
VALUES = st.one_of(st.integers().map(str), st.text(max_size=8), st.sampled_from(["1 ns", "2 KiB", "-3 MiB"]))
LINES = st.lists(st.tuples(st.sampled_from(KEYS), VALUES).map(": ".join), max_size=30).map("\n".join)


@given(st.one_of(st.binary(max_size=400), LINES.map(lambda text: text.encode(errors="replace"))))
def test_no_bytes_break_it(text: bytes) -> None:
    found = parse(text)
    if found is not None:
        numbers = [found.client_id, found.vram_bytes]
        numbers += [one.busy_ns for one in found.engines.values()]
        assert all(number is None or number >= 0 for number in numbers)
        assert all(one.capacity >= 1 for one in found.engines.values())


def test_unknown_keys_change_nothing() -> None:
    known = RECORDED["xe"]
    assert parse(known + b"drm-unknown: 5\nno key\n" + b"x" * 50) == parse(known)
