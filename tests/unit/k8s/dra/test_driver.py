# SPDX-License-Identifier: Apache-2.0
"""Claims are prepared and undone, over and over; what is killed in between is mended; specs say the right things."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.pods.said import taken
from fairsched.k8s.client import Refused, Unreachable
from fairsched.k8s.dra.cdi import Places, Specs
from fairsched.k8s.dra.claims import ClaimError
from fairsched.k8s.dra.driver import Driver
from tests.unit.k8s.dra.made import MIG, NODE, UID, A, B, claim, gpu, offers, result, said


class Claims:
    """The API server's, by name."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {"c": claim()}
        self.is_away = False

    def get(self, namespace: str, name: str) -> Mapping[str, Any]:
        if self.is_away:
            raise Unreachable("it hangs")
        if name not in self.kept:
            raise Refused("GET", 404, {"reason": "NotFound"}, None)
        return self.kept[name]


class Site:
    """A node's directories, and drivers on it, one after the other."""

    def __init__(self, top: Path) -> None:
        self.records, self.claims = top / "records", Claims()
        self.places = Places(top / "cdi", (top / "etc",), top / "dev", top / "caps")
        for directory in (self.places.cdi_dir, *self.places.other_dirs, self.places.device_dir):
            directory.mkdir()
        self.node_file("nvidia0")
        self.node_file("nvidiactl")
        self.changes = 0
        self.driver = self.start()

    def node_file(self, name: str) -> None:
        path = self.places.device_dir / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")

    def start(self) -> Driver:
        def changed() -> None:
            self.changes += 1

        self.driver = Driver(NODE, self.records, Specs(self.places), self.claims.get, taken, changed)
        self.driver.load()
        self.driver.set_offers(offers(gpu(A), gpu(B, minor=1)))
        return self.driver

    def prepare(self, uid: str = UID, name: str = "c") -> list[list[str]]:
        return [names for _, names in self.driver.prepare("ml", name, uid)]

    @property
    def spec_path(self) -> Path:
        return self.places.cdi_dir / f"gpu.fairsched.io-claim-{UID}.json"

    def edits(self) -> dict[str, Any]:
        (device,) = json.loads(self.spec_path.read_text())["devices"]
        edits: dict[str, Any] = device["containerEdits"]
        return edits

    def files(self) -> set[str]:
        return {path.name for top in (self.records, self.places.cdi_dir) for path in top.iterdir()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_claim_that_is_prepared_has_a_record_and_a_spec_and_undone_neither(site: Site) -> None:
    assert site.prepare() == [[f"gpu.fairsched.io/claim={UID}-0"]]
    assert site.files() == {f"{UID}.json", site.spec_path.name}
    assert site.spec_path.stat().st_mode & 0o777 == 0o644
    assert [one.shares() for one in site.driver.prepared()] == [{A: 75.0}]
    site.driver.unprepare(UID)
    assert site.files() == set() and site.driver.prepared() == []
    assert site.changes == 3, "the start, one for each"


def test_both_may_be_asked_for_again_and_again(site: Site) -> None:
    site.driver.unprepare(UID)
    first = site.prepare()
    before = site.spec_path.read_bytes()
    assert site.prepare() == first and site.spec_path.read_bytes() == before
    for _ in range(2):
        site.driver.unprepare(UID)
    assert site.files() == set()


def test_another_driver_goes_on_where_one_was_killed(site: Site) -> None:
    names = site.prepare()
    site.start()
    assert [one.shares() for one in site.driver.prepared()] == [{A: 75.0}]
    assert site.prepare() == names
    site.start().unprepare(UID)
    assert site.files() == set()


def test_what_is_prepared_is_answered_while_the_api_server_is_away(site: Site) -> None:
    names = site.prepare()
    site.claims.is_away = True
    assert site.start().prepare("ml", "c", UID)[0][1] == names[0]
    with pytest.raises(Unreachable):
        site.driver.prepare("ml", "d", "another")


def test_a_gpu_that_has_gone_changes_nothing_about_who_has_it(site: Site) -> None:
    names = site.prepare()
    site.driver.set_offers({})
    assert site.prepare() == names
    with pytest.raises(ClaimError, match="is not there"):
        site.claims.kept["d"] = claim(uid="another", name="d")
        site.driver.prepare("ml", "d", "another")


def test_a_claim_that_was_given_something_else_is_prepared_anew(site: Site) -> None:
    """Nobody has said that the first was over; the uid is the same."""
    site.prepare()
    site.claims.kept["c"] = claim(result("25", uuid=B))
    site.node_file("nvidia1")
    site.prepare()
    assert [one.shares() for one in site.driver.prepared()] == [{B: 25.0}]
    assert f"NVIDIA_VISIBLE_DEVICES={B}" in site.edits()["env"]


def test_a_write_that_fails_leaves_no_spec_of_what_the_claim_had_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet asks again, and would be answered with the GPU of the old allocation."""
    site.prepare()
    site.claims.kept["c"] = claim(result("25", uuid=B))
    site.node_file("nvidia1")
    with monkeypatch.context() as patch:
        patch.setattr(Specs, "write", full)
        with pytest.raises(OSError, match="full"):
            site.prepare()
    site.prepare()
    assert f"NVIDIA_VISIBLE_DEVICES={B}" in site.edits()["env"]


def full(*_: object) -> None:
    raise OSError("the disk is full")


def test_after_a_reboot_specs_are_written_again(site: Site) -> None:
    """/run is empty then; containers of the pod are made anew."""
    site.prepare()
    before = site.spec_path.read_bytes()
    site.spec_path.unlink()
    site.start().mend()
    assert site.spec_path.read_bytes() == before
    site.spec_path.unlink()
    site.prepare()
    assert site.spec_path.read_bytes() == before


def test_specs_without_a_record_and_halves_of_files_are_removed_at_the_start(site: Site) -> None:
    stale = site.places.cdi_dir / "gpu.fairsched.io-claim-gone.json"
    others = site.places.cdi_dir / "nvidia.yaml"
    half = site.places.cdi_dir / ".gpu.fairsched.io-claim-x.json.abc"
    for path in (stale, others, half, site.records / ".y.json.abc"):
        path.write_text("{}")
    site.start()
    assert site.files() == {"nvidia.yaml"}, "what is of others is left"


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"claim": {}, "cdi": []}', b"\xff\xfe"])
def test_a_damaged_record_costs_one_claim_its_values_and_no_container(site: Site, text: bytes) -> None:
    site.claims.kept["d"] = claim(uid="another", name="d")
    site.prepare()
    site.driver.prepare("ml", "d", "another")
    (site.records / f"{UID}.json").write_bytes(text)
    site.start()
    assert [one.uid for one in site.driver.prepared()] == ["another"]
    assert site.spec_path.exists(), "a container of it may be started again"
    site.driver.unprepare(UID)
    assert not [name for name in site.files() if UID in name]


def test_a_record_under_another_claims_name_is_none(site: Site) -> None:
    site.prepare()
    (site.records / "other.json").write_bytes((site.records / f"{UID}.json").read_bytes())
    assert [one.uid for one in site.start().prepared()] == [UID]


def test_claims_that_the_server_has_not_got_any_more_are_undone(site: Site) -> None:
    for number, name in enumerate("cde"):
        site.claims.kept[name] = claim(uid=f"u{number}", name=name)
        site.prepare(f"u{number}", name)
    del site.claims.kept["c"]
    site.claims.kept["d"] = claim(uid="made-anew", name="d")
    site.driver.sweep()
    assert [one.uid for one in site.driver.prepared()] == ["u2"]
    site.claims.is_away = True
    with pytest.raises(Unreachable):
        site.driver.sweep()
    assert [one.uid for one in site.driver.prepared()] == ["u2"], "silence is no evidence"


def test_a_refusal_to_look_undoes_nothing(site: Site) -> None:
    site.prepare()

    def forbidden(namespace: str, name: str) -> Mapping[str, Any]:
        raise Refused("GET", 403, {"reason": "Forbidden"}, None)

    site.driver._get_claim = forbidden
    with pytest.raises(Refused):
        site.driver.sweep()
    assert site.driver.prepared()


@pytest.mark.parametrize("uid", ["", "../../etc/x", "a/b", "x" * 65, "a\n", ".."])
def test_a_uid_is_no_path(site: Site, uid: str) -> None:
    for ask in (lambda: site.driver.prepare("ml", "c", uid), lambda: site.driver.unprepare(uid)):
        with pytest.raises(ClaimError):
            ask()
    assert site.files() == set()


def test_what_is_refused_leaves_nothing(site: Site) -> None:
    site.claims.kept["c"] = claim(config=(said(weight="x"),))
    with pytest.raises(ClaimError, match="weight"):
        site.prepare()
    (site.places.device_dir / "nvidia0").unlink()
    site.claims.kept["c"] = claim()
    with pytest.raises(ClaimError, match=r"device node .*nvidia0 cannot be given"):
        site.prepare()
    assert site.files() == set() and site.driver.prepared() == []


# ---- what is in a spec ----


def test_a_simulated_gpu_is_mounted_and_says_its_share(site: Site) -> None:
    site.node_file("nvidia-uvm")
    site.prepare()
    edits = site.edits()
    assert [one["containerPath"] for one in edits["mounts"]] == [
        "/dev/nvidia0",
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
    ]
    assert edits["env"] == [
        f"FAIRSCHED_SHARE_{A.upper().replace('-', '_')}=75",
        f"NVIDIA_VISIBLE_DEVICES={A}",
    ]


def test_a_device_node_is_given_as_one(site: Site) -> None:
    for name in ("nvidia0", "nvidiactl"):
        (site.places.device_dir / name).unlink()
        (site.places.device_dir / name).symlink_to("/dev/null")
    site.prepare()
    edits = site.edits()
    assert [one["path"] for one in edits["deviceNodes"]] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert "mounts" not in edits


def test_an_instance_has_its_gpus_node_and_its_two_capabilities(site: Site) -> None:
    site.driver.set_offers(offers(gpu(MIG, parent_uuid=A, gpu_instance=1, compute_instance=0)))
    site.claims.kept["c"] = claim(result(uuid=MIG))
    with pytest.raises(ClaimError, match="gi1/access does not say which device node"):
        site.prepare()
    for path, minor in (("gi1/access", 12), ("gi1/ci0/access", 13)):
        file = site.places.capabilities / "gpu0/mig" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
        site.node_file(f"nvidia-caps/nvidia-cap{minor}")
    site.prepare()
    assert [one["containerPath"] for one in site.edits()["mounts"]] == [
        "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["cdi_dir", "etc"])
def test_what_nvidia_names_by_uuid_comes_by_its_own_spec(site: Site, place: str) -> None:
    directory = site.places.cdi_dir if place == "cdi_dir" else site.places.other_dirs[0]
    text = f"kind: nvidia.com/gpu\ndevices:\n- name: '0'\n- name: {A}\n"
    (directory / "nvidia.yaml").write_text(text)
    assert site.prepare() == [[f"nvidia.com/gpu={A}", f"gpu.fairsched.io/claim={UID}-0"]]
    edits = site.edits()
    assert "mounts" not in edits and "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]


@pytest.mark.parametrize(
    "text",
    [
        "kind: nvidia.com/gpu\ndevices:\n- name: '0'\n",
        "nvidia.com/gpu: [",
        "kind: nvidia.com/gpu\n",
        "- nvidia.com/gpu",
    ],
)
def test_specs_that_do_not_name_the_gpu_bring_nothing(site: Site, text: str) -> None:
    """An index is another GPU's after the next reboot."""
    (site.places.cdi_dir / "nvidia.yaml").write_text(text)
    assert site.prepare() == [[f"gpu.fairsched.io/claim={UID}-0"]]


def test_without_a_minor_nobody_knows_the_device_node(site: Site) -> None:
    site.driver.set_offers(offers(gpu(A, minor=None)))
    with pytest.raises(ClaimError, match="is not known"):
        site.prepare()
