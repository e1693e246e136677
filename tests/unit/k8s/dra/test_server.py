# SPDX-License-Identifier: Apache-2.0
"""A kubelet finds the driver, has claims prepared, is restarted, and is told what is wrong."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.k8s.dra.server import MOST_ERROR_CHARS, Sockets
from fairsched.k8s.grpc_io import ask
from fairsched.k8s.proto import dra_pb2 as dra
from fairsched.k8s.proto import pluginregistration_pb2 as registration
from tests.unit.k8s.dra.made import NODE, UID, A, claim, said
from tests.unit.k8s.dra.test_driver import Site

WITHIN_S = 10.0


class Kubelet:
    """What a kubelet does, through its sockets alone."""

    def __init__(self, top: Path) -> None:
        self.registry = top / "plugins_registry"
        self.endpoint = Path()

    def find(self) -> registration.PluginInfo:
        (socket,) = self.registry.iterdir()
        info = ask(
            socket, "/pluginregistration.Registration/GetInfo", registration.InfoRequest(),
            registration.PluginInfo, WITHIN_S,
        )  # fmt: skip
        self.endpoint = Path(info.endpoint)
        return info

    def notify(self, error: str = "") -> None:
        (socket,) = self.registry.iterdir()
        status = registration.RegistrationStatus(plugin_registered=not error, error=error)
        call = "/pluginregistration.Registration/NotifyRegistrationStatus"
        ask(socket, call, status, registration.RegistrationStatusResponse, WITHIN_S)

    def prepare(self, *names: str) -> dra.NodePrepareResourcesResponse:
        claims = [
            dra.Claim(namespace="ml", name=name, uid=UID if name == "c" else f"u-{name}") for name in names
        ]
        call = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
        request = dra.NodePrepareResourcesRequest(claims=claims)
        return ask(self.endpoint, call, request, dra.NodePrepareResourcesResponse, WITHIN_S)

    def unprepare(self, uid: str) -> dra.NodeUnprepareResourcesResponse:
        call = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
        request = dra.NodeUnprepareResourcesRequest(claims=[dra.Claim(namespace="ml", name="c", uid=uid)])
        return ask(self.endpoint, call, request, dra.NodeUnprepareResourcesResponse, WITHIN_S)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def top() -> Iterator[Path]:
    """A path that is short: those of sockets have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="dra") as name:
        yield Path(name)


@pytest.fixture
def kubelet(top: Path) -> Kubelet:
    return Kubelet(top)


@pytest.fixture
def sockets(top: Path, site: Site) -> Iterator[Sockets]:
    found = Sockets(top, site.driver)
    found.refresh()
    yield found
    found.close()


def test_it_is_found_and_says_what_it_serves(sockets: Sockets, kubelet: Kubelet) -> None:
    info = kubelet.find()
    assert (info.type, info.name, list(info.supported_versions)) == (
        "DRAPlugin", "gpu.fairsched.io", ["v1.DRAPlugin"]
    )  # fmt: skip
    assert sockets.refusal is not None
    kubelet.notify()
    assert sockets.refusal is None
    kubelet.notify("too old")
    assert sockets.refusal == "the kubelet refused it: too old"


def test_a_claim_is_prepared_and_undone(sockets: Sockets, kubelet: Kubelet, site: Site) -> None:
    kubelet.find()
    (device,) = kubelet.prepare("c").claims[UID].devices
    assert (list(device.request_names), device.pool_name, device.device_name, list(device.cdi_device_ids)) == (
        ["gpu"], NODE, A.lower(), [f"gpu.fairsched.io/claim={UID}-0"]
    )  # fmt: skip
    assert kubelet.unprepare(UID).claims[UID].error == ""
    assert kubelet.unprepare("never-seen").claims["never-seen"].error == ""
    assert site.files() == set()


def test_each_claim_has_an_answer_of_its_own_with_the_remedy(
    sockets: Sockets, kubelet: Kubelet, site: Site
) -> None:
    site.claims.kept["bad"] = claim(config=(said(colour="x"),), uid="u-bad", name="bad")
    kubelet.find()
    answer = kubelet.prepare("bad", "c", "none").claims
    assert answer["u-bad"].error == "parameters: there is no key 'colour'; known: weight, class, vram-limit"
    assert "404" in answer["u-none"].error and not answer["u-none"].devices
    assert answer[UID].error == "" and len(answer[UID].devices) == 1


def test_whatever_goes_wrong_inside_is_an_answer(sockets: Sockets, kubelet: Kubelet, site: Site) -> None:
    def broken(*_: str) -> None:
        raise RuntimeError("x" * 2 * MOST_ERROR_CHARS)

    site.driver._get_claim = broken  # type: ignore[assignment]
    kubelet.find()
    assert kubelet.prepare("c").claims[UID].error == "x" * MOST_ERROR_CHARS


def test_sockets_that_somebody_removed_or_took_are_made_anew(sockets: Sockets, kubelet: Kubelet) -> None:
    assert not sockets.refresh()
    sockets.registering.unlink()
    assert sockets.refresh()
    kubelet.find()
    sockets.serving.unlink()
    sockets.serving.write_text("of another")
    assert sockets.refresh()
    assert kubelet.prepare("c").claims[UID].error == ""


def test_the_next_one_takes_the_place_of_one_that_was_killed(
    sockets: Sockets, kubelet: Kubelet, site: Site, top: Path
) -> None:
    """Its sockets are still there. When the one before ends late and takes those of the next along, they come back."""
    following = Sockets(top, site.driver)
    try:
        assert following.refresh()
        kubelet.find()
        assert kubelet.prepare("c").claims[UID].error == ""
        sockets.close()
        following.refresh()
        kubelet.find()
        assert kubelet.prepare("c").claims[UID].error == ""
    finally:
        following.close()
    assert list(kubelet.registry.iterdir()) == []
