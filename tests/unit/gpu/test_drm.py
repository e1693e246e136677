# SPDX-License-Identifier: Apache-2.0
"""Who holds cards of AMD and Intel: each client once, on its own card; others are not touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.gpu.drm import Drm
from tests.unit.gpu.fake_drm import RECORDED, FakeDrm

AMD, XE, I915 = RECORDED["amdgpu"], RECORDED["xe"], RECORDED["i915"]


@pytest.fixture
def fake(tmp_path: Path) -> FakeDrm:
    return FakeDrm(tmp_path)


def test_cards(fake: FakeDrm) -> None:
    fake.card(0, "nvidia")
    fake.card(10, "i915")
    fake.card(2, "amdgpu", mem_info_vram_total=16 << 30, mem_info_vram_used=3 << 30, gpu_busy_percent=40)
    amd, intel = fake.drm().cards()
    assert (amd.name, amd.vendor, amd.vram_total_bytes, amd.vram_used_bytes) == (
        "card2",
        "amd",
        16 << 30,
        3 << 30,
    )
    assert (amd.busy_ratio, amd.pci, amd.pci_id) == (0.4, "0000:08:00.0", "1002:73BF")
    assert (intel.name, intel.vendor, intel.vram_total_bytes) == ("card10", "intel", None)


def test_a_descriptor_that_was_duplicated_counts_once(fake: FakeDrm) -> None:
    fake.card(1, "amdgpu")
    for fd in (3, 4, 9):
        fake.client(50, fd, AMD)
    (one,) = fake.drm().uses()
    assert (one.pid, one.vram_bytes, one.regions["gtt"]) == (50, 2068 << 10, 8192 << 10)
    assert one.engine_s == pytest.approx(0.107322799)
    assert one.shared_with == ()


def test_two_clients_of_one_process_are_added(fake: FakeDrm) -> None:
    fake.card(1, "amdgpu")
    fake.client(50, 3, AMD)
    fake.client(50, 4, AMD.replace(b"217", b"218"))
    (one,) = fake.drm().uses()
    assert one.vram_bytes == 2 * 2068 << 10


def test_of_a_shared_client_the_memory_is_the_oldest_process_s_alone(fake: FakeDrm) -> None:
    fake.card(1, "amdgpu")
    fake.client(40, 3, AMD, start=900)
    fake.client(50, 3, AMD, start=100)
    young, old = fake.drm().uses()
    assert (young.vram_bytes, old.vram_bytes) == (0, 2068 << 10)
    assert (young.shared_with, old.shared_with) == ((50,), (40,))


def test_the_same_id_on_two_cards_is_two_clients(fake: FakeDrm) -> None:
    fake.card(0, "amdgpu")
    fake.card(1, "i915")
    fake.client(50, 3, AMD)
    fake.client(50, 4, I915.replace(b"42\n", b"217\n"))
    found = {one.card.driver: one.vram_bytes for one in fake.drm().uses()}
    assert found == {"amdgpu": 2068 << 10, "i915": 3 << 20}


def test_a_client_without_an_address_is_on_the_card_of_its_file(fake: FakeDrm) -> None:
    fake.card(0, "xe")
    fake.card(1, "i915")
    fake.client(50, 3, I915.replace(b"drm-pdev", b"drm-other"), "dri/renderD129")
    (one,) = fake.drm().uses()
    assert one.card.name == "card1"


def test_clients_without_ids_may_be_one_so_their_memory_is_not_known(fake: FakeDrm) -> None:
    fake.card(1, "amdgpu")
    text = AMD.replace(b"drm-client-id", b"drm-other")
    fake.client(50, 3, text)
    assert [one.vram_bytes for one in fake.drm().uses()] == [2068 << 10]
    fake.client(50, 4, text)
    assert [(one.vram_bytes, one.engine_s) for one in fake.drm().uses()] == [(None, None)]


def test_nvidia_drm_and_files_that_are_no_device_are_not_listed(fake: FakeDrm) -> None:
    fake.card(0, "nvidia")
    fake.card(1, "amdgpu")
    fake.client(
        50, 3, b"drm-driver: nvidia-drm\ndrm-pdev: 0000:01:00.0\ndrm-client-id: 1\n", "dri/renderD128"
    )
    fake.client(51, 3, AMD, "shm/dma")
    fake.client(52, 3, AMD.replace(b"0000:08", b"0000:09"))
    assert fake.drm().uses() == ()


def test_a_display_s_file_is_told(fake: FakeDrm) -> None:
    fake.card(1, "amdgpu")
    fake.client(50, 3, AMD, "dri/card1")
    assert [one.has_display for one in fake.drm().uses()] == [True]


def test_without_such_a_card_no_process_is_looked_at(tmp_path: Path) -> None:
    fake, looked = FakeDrm(tmp_path), []
    fake.card(0, "nvidia")
    fake.client(50, 3, AMD)
    drm = Drm(str(tmp_path / "proc"), str(tmp_path / "sys"), looked.append)  # type: ignore[arg-type, func-returns-value]
    assert (drm.uses(), looked) == ((), [])


def test_busy_between_two_readings(fake: FakeDrm) -> None:
    fake.card(1, "amdgpu")
    fake.client(50, 3, AMD)
    drm = fake.drm()
    assert drm.uses()[0].busy == {}
    fake.client(50, 3, AMD.replace(b"107322799", b"1107322799"))
    fake.now_s += 4
    assert drm.uses()[0].busy == {"gfx": pytest.approx(0.25)}
    fake.client(50, 3, AMD.replace(b"107322799", b"1007322799"))  # less than before: the larger stands
    fake.now_s += 4
    assert drm.uses()[0].busy == {"gfx": 0.0}
    fake.client(50, 3, AMD.replace(b"107322799", b"1307322799"))
    fake.now_s += 4
    assert drm.uses()[0].busy == {"gfx": pytest.approx(0.05)}


def test_busy_by_cycles_is_of_all_engines_of_a_kind(fake: FakeDrm) -> None:
    fake.card(1, "xe")
    fake.client(50, 3, XE)
    drm = fake.drm()
    drm.uses()
    later = XE.replace(b"cycles-ccs: 0", b"cycles-ccs: 2000").replace(b"7655183225", b"7655184225")
    fake.client(50, 3, later)
    (one,) = drm.uses()  # the wall clock has not moved: only cycles tell
    assert (one.busy["ccs"], one.busy["rcs"]) == (pytest.approx(0.5), 0.0)
    assert one.engine_s is None
