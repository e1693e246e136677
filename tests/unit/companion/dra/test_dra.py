# SPDX-License-Identifier: Apache-2.0
"""Which pods have what by claims; and the driver as a part of the companion, with an API server and a kubelet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched.companion.dra.asked import asked_by_claims, claims_of
from fairsched.companion.dra.part import DraPart, part_of
from fairsched.companion.part import Moment
from fairsched.companion.pods.asked import Asked
from fairsched.config import from_bytes
from fairsched.errors import ConfigError
from fairsched.gpu.hardware import Hardware
from fairsched.k8s.dra.cdi import Places
from fairsched.k8s.dra.claims import Given, Prepared
from fairsched.protocol.status import GpuStatus
from tests.unit.companion.escalate.api_server import ApiServer
from tests.unit.companion.escalate.conftest import api
from tests.unit.k8s.dra.made import UID, A, B, claim
from tests.unit.k8s.dra.test_publish import Server
from tests.unit.k8s.dra.test_server import Kubelet

__all__ = ["api"]


def pod(name: str, *claims: str, phase: str = "Running", template: bool = False) -> dict[str, Any]:
    """``template``: its claims were made for it, and have the names of its status."""
    refs, statuses = [], []
    for one in claims:
        refs.append({"name": f"r-{one}", **({} if template else {"resourceClaimName": one})})
        statuses.append({"name": f"r-{one}", "resourceClaimName": one})
    status = {"phase": phase, **({"resourceClaimStatuses": statuses} if template else {})}
    return {
        "metadata": {"namespace": "ml", "name": name, "uid": f"u-{name}"},
        "spec": {"resourceClaims": refs, "containers": [{"name": "main"}]},
        "status": status,
    }


def prepared(name: str, *given: tuple[str, float | None, int | None], **values: Any) -> Prepared:
    devices = tuple(Given("gpu", "node1", uuid.lower(), uuid, share, memory) for uuid, share, memory in given)
    return Prepared(
        f"u-{name}", "ml", name, devices, {key.replace("_", "-"): value for key, value in values.items()}
    )


def test_a_pod_has_what_its_claims_have_by_name_or_made_of_a_template() -> None:
    claims = [prepared("c", (A, 75.0, None)), prepared("d", (A, 25.0, None))]
    assert asked_by_claims([pod("a", "c"), pod("b", "d", template=True)], claims) == {
        ("ml", "a"): Asked({A: 75.0}), ("ml", "b"): Asked({A: 25.0})
    }  # fmt: skip
    assert asked_by_claims([pod("a", "c", "d")], claims) == {("ml", "a"): Asked({A: 100.0})}


def test_pods_that_use_one_claim_divide_it_as_long_as_they_live() -> None:
    claims = [prepared("c", (A, 60.0, 8 << 30))]
    found = asked_by_claims([pod("a", "c"), pod("b", "c"), pod("x", "c", phase="Failed")], claims)
    assert found == dict.fromkeys([("ml", "a"), ("ml", "b")], Asked({A: 30.0}, {"vram_limit": 4 << 30}))


def test_memory_that_was_consumed_is_a_limit_unless_another_is_said() -> None:
    one, two = prepared("c", (A, 10.0, 8 << 30)), prepared("d", (A, 10.0, 2 << 30))
    assert asked_by_claims([pod("a", "c", "d")], [one, two])["ml", "a"].values == {"vram_limit": 10 << 30}
    said = prepared("c", (A, 10.0, 8 << 30))
    said = Prepared(said.uid, said.namespace, said.name, said.given, {"vram_limit": 1})
    assert asked_by_claims([pod("a", "c")], [said])["ml", "a"].values == {"vram_limit": 1}


def test_a_claim_of_another_namespace_or_not_prepared_here_is_none() -> None:
    other = Prepared("u", "web", "c", prepared("c", (A, 50.0, None)).given)
    assert asked_by_claims([pod("a", "c")], [other]) == {}
    assert asked_by_claims([pod("a")], [prepared("c", (A, 50.0, None))]) == {}


def test_a_claim_that_was_not_made_yet_has_no_name() -> None:
    waiting = pod("a", "c", template=True)
    del waiting["status"]["resourceClaimStatuses"]
    assert list(claims_of(waiting)) == [] and list(claims_of({})) == []


# ---- the part ----


class Api(Server):
    def get(self, path: str, query: Any = None) -> Any:
        assert path == "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims/c"
        return claim()


class Site:
    """A part, made by hand: its threads do not run."""

    def __init__(self, top: Path, *, is_watched: bool = True) -> None:
        self.api, self.now_s, self.looked = Api(), 0.0, 0
        places = Places(top / "cdi", (), top / "dev")
        places.device_dir.mkdir()
        for name in ("nvidia0", "nvidiactl"):
            (places.device_dir / name).write_text("")
        watched = str(is_watched).lower()
        section = f"{{watch_pods: {watched}, dra: {{enabled: true, kubelet_dir: {top}}}}}"
        config = from_bytes(f"state_dir: {top}/state\nkubernetes: {section}\n".encode(), "f")

        def hardware(uuids: Any) -> dict[str, Hardware]:
            self.looked += 1
            return {uuid: Hardware(minor=number) for number, uuid in enumerate(sorted(uuids))}

        self.part = DraPart(config, cast(Any, self.api), "node1", places, hardware, lambda: self.now_s)
        self.part.driver.load()
        self.kubelet = Kubelet(top)

    def see(self, *uuids: str, **more: Any) -> list[str]:
        """A moment, a look at the API server, and another moment: the faults."""
        gpus = tuple(
            GpuStatus(uuid, index=0, memory_total_bytes=1 << 34, is_up=True, **more) for uuid in uuids
        )
        moment = cast(Moment, SimpleNamespace(report=SimpleNamespace(gpus=gpus)))
        self.part.take(moment)
        publisher = self.part._publisher
        publisher.watch._version = ""
        publisher.watch.step()
        self.part._loop.step()
        found = self.part.take(moment)
        assert found is not None
        return list(found.faults)

    def published(self) -> list[str]:
        return [device["name"] for one in self.api.slices.values() for device in one["spec"]["devices"]]


@pytest.fixture
def top() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra") as name:
        yield Path(name)


@pytest.fixture
def site(top: Path) -> Iterator[Site]:
    found = Site(top)
    yield found
    found.part.close()


def test_what_the_daemon_sees_is_published_and_what_is_prepared_is_asked_for(site: Site) -> None:
    changes: list[int] = []
    site.part.changed = lambda: changes.append(1)
    assert site.see(A, "GPU-unknown-3") == []
    assert site.published() == [A.lower()], "a GPU without a name is none"
    site.kubelet.find()
    site.kubelet.notify()
    assert site.kubelet.prepare("c").claims[UID].error == ""
    assert changes == [1] and site.part.asked([pod("a", "c")]) == {("ml", "a"): Asked({A: 75.0})}
    site.see(A, B)
    assert sorted(site.published()) == [A.lower(), B.lower()] and site.looked == 2
    site.see(A)
    assert site.published() == [A.lower()] and site.looked == 2


def test_the_kubelet_is_served_once_claims_can_be_judged(site: Site) -> None:
    site.part.take(cast(Moment, SimpleNamespace(report=SimpleNamespace(gpus=()))))
    assert not site.part.sockets.registering.exists()
    site.see()
    assert site.part.sockets.registering.exists() and site.published() == []


def test_claims_of_before_can_be_undone_without_an_api_server(site: Site, top: Path) -> None:
    site.see(A)
    site.kubelet.find()
    site.kubelet.prepare("c")
    site.part.close()
    (top / "dev" / "nvidia0").unlink()
    (top / "dev" / "nvidiactl").unlink()
    (top / "dev").rmdir()
    following = Site(top)
    try:
        following.part.take(cast(Moment, SimpleNamespace(report=SimpleNamespace(gpus=()))))
        assert following.kubelet.find().name == "gpu.fairsched.io"
        assert following.kubelet.unprepare(UID).claims[UID].error == ""
    finally:
        following.part.close()


def test_a_kubelet_that_does_not_ask_is_told_of_after_a_minute(site: Site) -> None:
    assert site.see(A) == []
    site.now_s = 61.0
    (fault,) = site.see(A)
    assert fault.startswith("dra: no claim can be prepared: the kubelet has not asked for it yet")
    site.kubelet.notify()
    assert site.see(A) == []


def test_what_is_in_the_way_is_said(site: Site) -> None:
    site.see(A)
    site.part._loop.fault = "403"
    assert site.part._faults() == ["dra: the ResourceSlices are not what they have to be: 403"]
    site.part._publisher.watch._note("it hangs")
    site.part._publisher.watch._clock = lambda: 10**9
    (fault,) = site.part._faults()
    assert "have not been seen for" in fault and fault.endswith("it hangs")


def test_shares_that_nobody_holds_are_told_of(top: Path) -> None:
    found = Site(top, is_watched=False)
    try:
        assert "set kubernetes.watch_pods: true" in found.see(A)[0]
    finally:
        found.part.close()


def test_a_kubelet_directory_that_cannot_be_written_is_told_of(site: Site, top: Path) -> None:
    (top / "plugins").write_text("a file")
    (fault,) = site.see(A)
    assert fault.startswith("dra: the kubelet cannot be served: ")


def test_claims_are_looked_after_now_and_then(site: Site) -> None:
    site.see(A)
    site.kubelet.find()
    site.kubelet.prepare("c")
    site.api.get = lambda path, query=None: claim(uid="made-anew")  # type: ignore[method-assign]
    site.see(A)
    assert site.part.driver.prepared(), "not at every look"
    site.now_s = 601.0
    site.kubelet.notify()
    site.see(A)
    assert site.part.driver.prepared() == []


def test_records_that_cannot_be_kept_are_an_error_with_its_key(api: ApiServer, top: Path) -> None:
    (top / "file").write_text("")
    section = f"{{kubeconfig: {api.kubeconfig()}, dra: {{enabled: true}}}}"
    config = from_bytes(f"state_dir: {top}/file/state\nkubernetes: {section}\n".encode(), "f")
    with pytest.raises(ConfigError, match=r"state_dir: kubernetes\.dra: its records cannot be kept"):
        part_of(config)
