# SPDX-License-Identifier: Apache-2.0
"""Files called libcuda that a tenant makes to keep others from their probes, or the daemon from its answers."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairsched.bpf.attachments import BUDGET
from tests.node.daemon.conftest import make_site as make_site
from tests.node.daemon.conftest import site as site
from tests.node.daemon.site import PATIENCE_S, Site, is_running, logged
from tests.node.hostile import files
from tests.node.promptness import time_until
from tests.support import let_run, wait_until

FOUND_S = 2.0
"""Processes are listed once a second."""
ENDED_S = 1.0
ACCUSED_S = 5.0
"""Unseen work is named within so long."""
FILES = 1500
ANSWERED_S = 0.02


@pytest.fixture
def hostile(site: Site, tmp_path: Path) -> Iterator[Path]:
    """A directory of ``bad``; the daemon runs."""
    directory = tmp_path / "bad"
    directory.mkdir()
    site.configure({"bad": {"on_misbehaviour": "terminate"}, "good": {"on_misbehaviour": "terminate"}})
    site.start()
    yield directory


def _good_is_seen_and_lives(site: Site, directory: Path) -> None:
    worker = files.spawn_with_own_libcuda(site, "good", directory)
    took = time_until(
        lambda: logged(site.log(), rf"library=.*{directory.name}/.* probes=[1-9]"),
        PATIENCE_S,
        "it has its probes",
    )
    files.expect_soon(took, FOUND_S)
    before_s, truth_ns = site.gpu_time_s("good"), site.truth_ns()["good"]
    let_run(ACCUSED_S)
    accounted_s = site.gpu_time_s("good") - before_s
    assert accounted_s == pytest.approx((site.truth_ns()["good"] - truth_ns) / 1e9, rel=0.25)
    assert is_running(worker.pid)
    assert logged(site.log(), "misbehaviour=|terminate=|Traceback|probes=lost") == []


def _ends_with_a_killed_daemon(site: Site) -> None:
    attacher = site.helpers()["attacher"]
    os.kill(site.pid, 9)
    took = time_until(lambda: not is_running(attacher), PATIENCE_S, "the attacher ends")
    files.expect_soon(took, ENDED_S)


def test_a_file_of_10_to_the_11_symbols_is_refused_at_once_and_delays_nobody(
    site: Site, hostile: Path, tmp_path: Path
) -> None:
    files.write_poison(hostile / files.LIBRARY, 10**11)
    with files.mapping(site, "bad", hostile):
        refused = rf"library=.*/bad/{files.LIBRARY} probes=0 error=.*100000000000 symbols"
        took = time_until(lambda: logged(site.log(), refused), PATIENCE_S, "it is refused, and said why")
        files.expect_soon(took, FOUND_S)
        _good_is_seen_and_lives(site, tmp_path / "good")
        _ends_with_a_killed_daemon(site)


def test_1500_files_of_one_process_cost_their_tenant_its_budget_and_nobody_else_anything(
    site: Site, hostile: Path, tmp_path: Path
) -> None:
    for number in range(FILES):
        (hostile / f"libcuda.so.{number}").write_bytes(files.elf(2))
    attached = rf"library=.*{hostile.name}/libcuda.* probes=1 "
    with files.mapping(site, "bad", hostile):
        waits_s: list[float] = []

        def is_seen() -> bool:
            begun_s = time.monotonic()
            assert site.ping() == site.pid
            waits_s.append(time.monotonic() - begun_s)
            return len(waits_s) >= 100 and bool(logged(site.log(), attached))

        wait_until(is_seen, PATIENCE_S, "some of them have probes, and it answers")
        _good_is_seen_and_lives(site, tmp_path / "good")
        # On a machine that others work on at the same time a single request says nothing.
        assert statistics.median(waits_s) < ANSWERED_S, statistics.quantiles(waits_s, n=20)
        assert max(waits_s) < 50 * ANSWERED_S
        wait_until(
            lambda: logged(site.log(), "libraries=refused tenant=bad"),
            PATIENCE_S,
            "whose it is is said in the log",
        )
        assert any("tenant bad" in warning for warning in site.status()["warnings"])
        assert len(logged(site.log(), attached)) <= BUDGET
        _ends_with_a_killed_daemon(site)
