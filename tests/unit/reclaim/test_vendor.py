# SPDX-License-Identifier: Apache-2.0
"""Cards of AMD and Intel in the list and in plans: shown, ended where it is sure who holds them, never reset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairsched.cli import ps
from fairsched.errors import HostUnsupported
from fairsched.reclaim.check import judge
from fairsched.reclaim.holder import GpuView, Listing
from fairsched.reclaim.listing import Lister, gpus_called
from fairsched.reclaim.marks import plain_of
from fairsched.reclaim.plan import make_plan
from fairsched.reclaim.reset import outlook
from fairsched.reclaim.vendor import DrmVendor, Held, doubt_of
from tests.unit.gpu.fake_drm import RECORDED, FakeDrm
from tests.unit.reclaim.made import holder, listing, process, table_of

CARD = "pci-0000:08:00.0"
VIEW = GpuView(CARD, "card1", None, 3 << 30, 16 << 30, vendor="amd", driver="amdgpu")


class NoNvml:
    error, gpus = "no library", ()

    def mps_clients(self) -> dict[int, Any]:
        return {}

    def listed_by_slot(self, _clients: object) -> dict[int, Any]:
        return {}


def lister(fake: FakeDrm) -> Lister:
    return Lister(None, nvml=NoNvml(), others=DrmVendor(fake.drm()))  # type: ignore[arg-type]


def test_without_nvml_and_daemon_the_cards_of_others_are_listed(tmp_path: Path) -> None:
    fake = FakeDrm(tmp_path)
    with pytest.raises(HostUnsupported):
        lister(fake)
    fake.card(1, "amdgpu", mem_info_vram_total=16 << 30, mem_info_vram_used=3 << 30)
    pid = 4_000_001  # above what a kernel gives out here, so that it is nobody's
    fake.client(pid, 3, RECORDED["amdgpu"])
    now = lister(fake).look()
    (one,) = now.holders
    assert (one.pid, one.status.gpu, one.gpu_index, one.vendor) == (pid, CARD, "card1", "amd")
    plain = plain_of(one)
    assert (plain["vendor"], plain["source"], plain["vram_bytes"]) == ("amd", "drm", 2068 << 10)
    assert plain["regions"] == {"vram": 2068 << 10, "gtt": 8192 << 10, "cpu": 0}
    first = ps.render(now.holders, now.gpus, now.table)[0]
    assert first == "card1 (amdgpu, 0000:08:00.0): 1 process; 3.0G of 16.0G in use; listed only"


def test_a_card_is_named_whole_and_never_by_nvidia_s_index() -> None:
    nvidia = GpuView("GPU-5f2c1a90-0", "0", 0)
    both = (nvidia, VIEW)
    assert gpus_called("0", both) == {nvidia.uuid}
    for name in ("card1", "0000:08:00.0", CARD):
        assert gpus_called(name, both) == {CARD}


def on_card(pid: int, parent: int = 1, **changes: Any) -> Any:
    one = holder(process(pid, parent), gpu_index="card1", vendor="amd", **changes)
    return replace(one, status=replace(one.status, gpu=CARD))


def test_a_filter_takes_the_address_whole() -> None:
    words = on_card(50).words("gpu")
    assert words == {"card1", CARD, "0000:08:00.0"}


def seen(*holders: Any) -> Listing:
    return listing(list(holders), table_of(*(one.facts for one in holders)), VIEW)


def test_a_sure_holder_is_ended_and_the_check_looks_at_the_same_list() -> None:
    now = seen(on_card(50))
    plan = make_plan(now.holders, now, {})
    assert [one.pid for one in plan.targets] == [50]
    assert not judge(now, now, CARD, {50: 150}).is_free
    assert judge(now, listing([], now.table, VIEW), CARD, {50: 150}).is_free


def test_one_in_doubt_is_left_with_its_reason() -> None:
    now = seen(on_card(50, is_listed=False, doubt="it has the file of a display open"))
    plan = make_plan(now.holders, now, {})
    assert not plan.targets
    assert plan.left[0].why.startswith("it has the file of a display open")


def test_who_inherited_the_client_ends_with_its_parent() -> None:
    now = seen(on_card(50), on_card(51, 50, is_listed=False, doubt="shares its client"))
    plan = make_plan(now.holders, now, {})
    assert ([one.pid for one in plan.targets], plan.left) == ([50, 51], ())


def test_doubt() -> None:
    table = table_of(process(50), process(51, 50), process(60))
    assert doubt_of(Held(50, CARD, shared_with=(51,)), table) is None
    assert "with 50" in (doubt_of(Held(51, CARD, shared_with=(50,)), table) or "")
    assert "with 60" in (doubt_of(Held(50, CARD, shared_with=(51, 60)), table) or "")
    assert "display" in (doubt_of(Held(50, CARD, has_display=True), table) or "")
    assert doubt_of(Held(50, CARD), table) is None


def test_there_is_no_reset() -> None:
    now = seen(on_card(50))
    assert outlook(None, now, {50}, CARD) == "no reset of card1: a GPU of amdgpu is listed only"  # type: ignore[arg-type]
