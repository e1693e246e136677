# SPDX-License-Identifier: Apache-2.0
"""Clients of MPS are not held where that may stall others, and nobody is spared for looking like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairsched.simgpu.mps import MpsServer
from tests.node.daemon.conftest import MakeSite
from tests.node.daemon.site import GREEDY, PATIENCE_S, STEADY, logged
from tests.support import let_run, wait_until

pytestmark = [pytest.mark.alone, pytest.mark.rest]


def test_clients_of_the_nodes_server_are_not_held_and_it_is_said(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(overlap=4)
    site.configure({"chat": {"weight": 3}, "batch": {"weight": 1}})
    with MpsServer(site.host, tmp_path) as server:
        assert server.worker is not None
        site.start()
        site.spawn("chat", STEADY, env=server.client_env())
        site.spawn("batch", GREEDY, env=server.client_env(25))
        wait_until(lambda: "not held" in (site.tenant("batch")["note"] or ""), PATIENCE_S, "it is said")
        note = site.tenant("batch")["note"]
        assert f"server {server.worker.pid}: not held" in note and "limited to 25 % of the threads" in note
        before = len(site.decisions("batch"))
        let_run(4)
        late = [one for one in site.decisions("batch")[before:] if one["action"] == "hold"]
        assert late == [], "a client is never held"
        socket = ("--socket", str(site.socket_path))
        for command in (("status",), ("explain", "batch")):
            shown = " ".join(site.cli(*command, *socket).stdout.split())
            assert "client of MPS" in shown, (command, shown)
        doctor = " ".join(site.cli("doctor", "--config", str(site.config_path)).stdout.split())
        assert "2 clients of MPS" in doctor, doctor
    assert logged(site.log(), "Traceback|tick failed") == []


def test_the_client_of_another_tenants_server_is_held_beside_the_nodes(
    make_site: MakeSite, tmp_path: Path
) -> None:
    """`batch` has nothing there but a client of the server of `friend`; `chat` is the node's, `plain` nobody's."""
    site = make_site()
    site.configure(
        {"chat": {"weight": 1}, "batch": {"weight": 1}, "friend": {"weight": 1}, "plain": {"weight": 6}}
    )
    nodes, friends = tmp_path / "a", tmp_path / "b"
    nodes.mkdir()
    friends.mkdir()
    with MpsServer(site.host, nodes) as server, MpsServer(site.host, friends, site.cgroup("friend")) as other:
        assert server.worker is not None
        site.start()
        site.spawn("chat", STEADY, env=server.client_env())
        site.spawn("batch", GREEDY, env=other.client_env())
        site.spawn("plain", STEADY)
        wait_until(
            lambda: "another server than the node's" in (site.tenant("batch")["note"] or ""),
            PATIENCE_S,
            "it is said",
        )
        assert f"server {server.worker.pid}: not held" in site.tenant("chat")["note"]
        site.wait_held("batch")
    assert logged(site.log(), "Traceback|tick failed") == []


def test_a_server_of_its_own_spares_nobody(make_site: MakeSite, tmp_path: Path) -> None:
    """`batch` runs a process of the server's name and is its client: it is held, with all of that."""
    site = make_site()
    site.configure({"chat": {"weight": 3}, "batch": {"weight": 1}})
    with MpsServer(site.host, tmp_path, site.cgroup("batch")) as server:
        site.start()
        site.spawn("chat", STEADY)
        site.spawn("batch", GREEDY, env=server.client_env())
        wait_until(
            lambda: "held as without MPS" in (site.tenant("batch")["note"] or ""), PATIENCE_S, "it is said"
        )
        site.wait_held("batch")
        let_run(3)
        shares = site.shares(["chat", "batch"], 6)
        assert abs(shares["batch"] - 0.25) < 0.05, shares
