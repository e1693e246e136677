# SPDX-License-Identifier: Apache-2.0
"""Who is not held because of MPS, and that nobody comes to that by pretending."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairsched.gpu.nvml import Gpu
from fairsched.gpu.watch import OnMps
from fairsched.model import TenantSpec
from fairsched.observe import mps
from fairsched.observe.mps import MpsWatch, judge

OUTSIDE, INSIDE = 900, 901
"""A server of the node's own, and one in the tenant `c`."""
OTHER = 902
"""Another one of the node's own."""


def kept(clients: Mapping[int, str | None], others: Mapping[int, str | None], *servers: int) -> set[str]:
    return set(judge("GPU-a", clients, others, servers, {}).kept)


def test_the_clients_of_the_nodes_server_are_one_group_and_not_held() -> None:
    group = judge("GPU-a", {1: "a", 2: "a", 3: "b", 4: None}, {OUTSIDE: None}, [OUTSIDE], {1: 50.0, 2: 12.5})
    assert (group.clients, group.kept, group.servers) == ({"a": 2, "b": 1}, {"a", "b"}, (OUTSIDE,))
    text = group.text("a")
    assert text.startswith("2 clients of MPS, limited to 12.5 %, 50 % of the threads, server 900: not held")
    assert group.text("b").startswith("1 client of MPS, server 900: not held")


@pytest.mark.parametrize(
    ("clients", "others", "servers"),
    [
        pytest.param({1: "a"}, {}, (), id="no server at all"),
        pytest.param({1: "c"}, {INSIDE: "c"}, (INSIDE,), id="its own server"),
        pytest.param({1: "a", 2: "c"}, {INSIDE: "c"}, (INSIDE,), id="the server of another tenant"),
        pytest.param({1: "a"}, {OUTSIDE: None}, (), id="a process of no tenant that is no server"),
        pytest.param({}, {INSIDE: "c", OUTSIDE: None}, (INSIDE, OUTSIDE), id="a name, and no client"),
        pytest.param({1: None}, {OUTSIDE: None}, (OUTSIDE,), id="a client of no tenant"),
        pytest.param({1: "c"}, {5: "c", OUTSIDE: None}, (OUTSIDE,), id="a hidden server, or plain work"),
        pytest.param(
            {1: "c"}, {INSIDE: "c", OUTSIDE: None}, (INSIDE, OUTSIDE), id="a server beside the node's"
        ),
        pytest.param({1: "a"}, {}, (OUTSIDE,), id="a server that the driver does not list"),
    ],
)
def test_nobody_comes_to_it_by_pretending(
    clients: Mapping[int, str | None], others: Mapping[int, str | None], servers: tuple[int, ...]
) -> None:
    assert kept(clients, others, *servers) == set()


def test_who_works_beside_mps_is_held_and_takes_nobody_along() -> None:
    assert kept({1: "a", 2: "b"}, {5: "b", OUTSIDE: None}, OUTSIDE) == {"a"}
    group = judge("GPU-a", {1: "a", 2: "b"}, {5: "b", OUTSIDE: None}, [OUTSIDE], {})
    assert "other processes on the GPU: held as without MPS" in group.text("b")
    assert "held as without MPS" in judge("GPU-a", {1: "a"}, {}, [], {}).text("a")


def test_who_is_connected_to_another_server_is_no_client_of_the_nodes() -> None:
    clients, others = {1: "a", 2: "b", 3: "b"}, {OUTSIDE: None, OTHER: None, INSIDE: "c"}
    servers = (OUTSIDE, OTHER, INSIDE)
    group = judge("GPU-a", clients, others, servers, {}, {1: OUTSIDE, 2: OTHER, 3: INSIDE})
    assert (group.kept, group.apart) == ({"a"}, {"b"})
    assert "server 900: not held" in group.text("a") and "another server than the node's" in group.text("b")
    group = judge("GPU-a", clients, others, servers, {}, {1: OUTSIDE, 2: OTHER, 3: OTHER})
    assert group.kept == {"a", "b"} and "server 902: not held" in group.text("b")
    group = judge("GPU-a", clients, others, servers, {}, {1: OUTSIDE})
    assert group.kept == {"a"}, "where connections are seen, who has none is another's"
    assert judge("GPU-a", clients, others, servers, {}, {}).kept == {"a", "b"}, "sockets tell nothing here"


def test_each_client_is_asked_for_its_sockets_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[int], list[int]]] = []
    watched = watch(monkeypatch, {OUTSIDE: "nvidia-cuda-mps-server"}, {})

    def connections(clients: list[int], servers: list[int]) -> dict[int, int]:
        asked.append((sorted(clients), servers))
        return {1: OUTSIDE} if 1 in clients else {}

    monkeypatch.setattr(mps.mps_sockets, "connections", connections)
    for clients in ({1}, {1, 2}, {1, 2}, {2}, {1, 2}):
        look(watched, {0: OnMps(frozenset(clients), frozenset({OUTSIDE}))})
    assert asked == [([1], [OUTSIDE]), ([2], [OUTSIDE]), ([1], [OUTSIDE])], (
        "one that was gone is another by then"
    )
    assert watched.doubted == {("a", "GPU-a")}


def watch(
    monkeypatch: pytest.MonkeyPatch, programs: Mapping[int, str], environs: Mapping[int, str]
) -> MpsWatch:
    def readlink(path: str) -> str:
        try:
            return programs[int(Path(path).parts[2])]
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.setattr(mps, "os", SimpleNamespace(readlink=readlink))
    monkeypatch.setattr(
        mps, "read_environ", lambda pid, names: {names[0]: environs[pid]} if pid in environs else {}
    )
    return MpsWatch({1: 11, 2: 12, 3: 12, OUTSIDE: 99}.get)


TENANTS: dict[int, str] = {11: "a", 12: "b"}


def look(watched: MpsWatch, listed: Mapping[int, OnMps]) -> None:
    watched.look(listed, (Gpu("GPU-a"), Gpu("GPU-b")), TENANTS.get)


@pytest.mark.parametrize(
    "program", ["/usr/bin/nvidia-cuda-mps-server", "/x/nvidia-cuda-mps-server (deleted)"]
)
def test_it_is_read_from_the_driver_and_proc(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environs = {1: "25", 2: "²", 3: "nan"}
    watched = watch(monkeypatch, {OUTSIDE: program, 1: program}, environs)
    listed = {1: OnMps(frozenset({1, 2, 3, 77}), frozenset({OUTSIDE, 78}))}
    look(watched, listed)
    assert watched.doubted == {("a", "GPU-b"), ("b", "GPU-b")}
    assert [(group.gpu, dict(group.percentages)) for group in watched.groups] == [("GPU-b", {"a": (25.0,)})]
    spared = watched.spare({"a": TenantSpec("a", weight=3)})
    assert (spared["a"].is_exempt, spared["a"].weight, spared["b"].is_exempt) == (True, 3, True)
    look(watched, {})
    assert (watched.doubted, watched.groups) == (frozenset(), ())
    assert watched.spare({}) == {}


def test_an_answer_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    watched = watch(monkeypatch, {}, {})
    watched._cgroup_of = lambda pid: asked.append(pid)
    listed = {0: OnMps(frozenset({1}), frozenset())}
    look(watched, listed)
    look(watched, listed)
    assert asked == [1]


def test_a_crowd_costs_little_and_takes_the_protection_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = watch(monkeypatch, {OUTSIDE: "nvidia-cuda-mps-server"}, {})
    asked: list[int] = []
    cgroup_of = watched._cgroup_of
    watched._cgroup_of = lambda pid: asked.append(pid) or cgroup_of(pid)
    look(watched, {0: OnMps(frozenset({1}), frozenset(range(OUTSIDE, 10_000)))})
    assert watched.doubted == {("a", "GPU-a")} and len(asked) <= 1025


@pytest.mark.parametrize("text", ["", "0", "-5", "101", "1e2", "१०", "9" * 5000, "50%", "inf"])
def test_a_percentage_that_is_none_is_not_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = watch(monkeypatch, {OUTSIDE: "nvidia-cuda-mps-server"}, {1: text})
    look(watched, {0: OnMps(frozenset({1}), frozenset({OUTSIDE}))})
    assert watched.groups[0].percentages == {}
