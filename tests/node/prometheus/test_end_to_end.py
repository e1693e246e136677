# SPDX-License-Identifier: Apache-2.0
"""Unfairness, seen from outside: daemon, Prometheus, Alertmanager and a webhook, all real; only the GPU is simulated.

The files of packaging/prometheus are run, with every duration divided by the same number (``stack.faster``), and the
expressions of every panel of packaging/grafana/fairsched.json are asked of that Prometheus.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fairsched.cgroup.path import Mount
from fairsched.simgpu.workload import Worker
from tests.node.daemon.site import GREEDY, PATIENCE_S, START_S, STEADY, Site
from tests.node.prometheus.stack import Stack, free_port, serving
from tests.support import wait_until
from tests.unit.grafana.board import GENERATOR, queries, with_variables
from tests.unit.prometheus.shipped import alerts

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("prometheus-alertmanager") is None,
    reason="no prometheus: sudo make setup installs it (Debian: prometheus, prometheus-alertmanager)",
)

DCGM = """\
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="{uuid}",device="nvidia0",modelName="simulated"}} {xid}
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="{uuid}",device="nvidia0",modelName="simulated"}} 51
"""
TOKENS = """\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{model_name="simulated"}} {tokens}
"""
AHEAD_MS = -250
"""Beyond the 200 ms of the rule."""
OTHERS = {
    "FairschedUnfair",
    "FairschedTenantStarved",
    "FairschedTokenRateUneven",
    "FairschedQueueDelayHigh",
    "FairschedLowConfidence",
}
"""What may be told of a GPU that two tenants fight for, one with deep queues, on a machine that may be busy with
something else. Anything else is a false alarm."""


class Scene:
    """Two tenants 3:1 with equal appetite, a daemon that only looks on, and those who watch it."""

    def __init__(self, directory: Path) -> None:
        self._stack = ExitStack()
        try:
            self.site = Site(directory)
            self._stack.callback(self.site.close)
            self.uuid = self.site.host.uuids()[0]
            self.xid = 0
            self._exporter = free_port()
            pages = {
                name: self._stack.enter_context(serving(self._tokens_of(name))) for name in ("chat", "batch")
            }
            self._tenants = {
                "chat": {"weight": 3, "tokens_url": f"http://127.0.0.1:{pages['chat']}/metrics"},
                "batch": {
                    "weight": 1,
                    "class": "batch",
                    "tokens_url": f"http://127.0.0.1:{pages['batch']}/metrics",
                },
            }
            self.configure("observe")
            self.site.start()
            self.site.attach()
            self.site.spawn("chat", STEADY)
            self.site.spawn("batch", GREEDY)
            # On a machine that is busy with something else the account may be in doubt for a while.
            wait_until(self._is_unfair, START_S, "batch is ahead, by an account that is believed")
            dcgm = self._stack.enter_context(serving(lambda: DCGM.format(uuid=self.uuid, xid=self.xid)))
            self.watch = Stack(directory / "watch", self._exporter, dcgm)
            self._stack.callback(self.watch.close)
        except BaseException:
            self.close()
            raise

    def configure(self, mode: str) -> None:
        nodes = str(self.site.host.state_dir / "dev")
        self.site.configure(
            self._tenants,
            mode=mode,
            metrics={"listen": f"127.0.0.1:{self._exporter}"},
            gpu={"device_dir": nodes},
            mechanisms={"driver": "required"},
        )

    def _is_unfair(self) -> bool:
        batch = self.site.tenant("batch")
        return batch["confidence"] == "high" and (batch["lag_ms"] or 0) < AHEAD_MS

    def _tokens_of(self, tenant: str) -> Callable[[], str]:
        def page() -> str:
            workers: list[Worker] = self.site.workers.get(tenant, [])
            return TOKENS.format(tokens=sum(20 * worker.step_count() for worker in workers))

        return page

    def wait_told(self, alert: str, status: str = "firing", since: int = 0, **labels: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def is_told() -> bool:
            found.update(self.watch.has_told(alert, status, since, **labels) or {})
            return bool(found)

        try:
            wait_until(is_told, PATIENCE_S, "it is told")
        except AssertionError as error:
            raise AssertionError(
                f"{alert} {labels} {status}: {error}; came: {self.told()}\n{self.state()}"
            ) from None
        return found

    def wait_shown(self) -> None:
        """Until every expression of the board returns something."""
        empty: list[str] = []

        def is_shown() -> bool:
            empty[:] = [
                f"{panel}: {expression}"
                for panel, expression in queries()
                if not self.watch.values(with_variables(expression, rate_interval="4s"))
            ]
            return not empty

        try:
            wait_until(is_shown, PATIENCE_S, "it is shown")
        except AssertionError:
            raise AssertionError("panels without data:\n" + "\n".join(empty)) from None

    def draw(self, path: Path) -> None:
        """The board as a picture. FAIRSCHED_BOARD_PICTURE names another place: docs/img/board.png."""
        program, url = GENERATOR.with_name("picture.py"), f"http://127.0.0.1:{self.watch.port}"
        path = Path(os.environ.get("FAIRSCHED_BOARD_PICTURE") or path)
        subprocess.run([sys.executable, str(program), url, str(path), "--seconds", "45"], check=True)
        assert path.read_bytes().startswith(b"\x89PNG")

    def state(self) -> str:
        """What the daemon says, for whoever reads a failure."""
        out = self.site.cli("status", "--socket", str(self.site.socket_path))
        seen = {
            expression: self.watch.ask("query", query=expression)["result"]
            for expression in (
                "up",
                "ALERTS",
                '{__name__=~"(tenant_)?gpu:fairsched.+"}',
                "fairsched_lag_seconds[9s]",
            )
        }
        return "\n".join([out.stdout, out.stderr, *(f"{name}: {value}" for name, value in seen.items())])

    def told(self) -> list[tuple[str, str]]:
        return [(one["labels"]["alertname"], one["status"]) for one in self.watch.alerts]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def scene(tmp_path: Path, mount: Mount) -> Iterator[Scene]:
    del mount  # skips where there is none
    scene = Scene(tmp_path)
    try:
        yield scene
    finally:
        scene.close()


@pytest.mark.rest
def test_an_unfair_node_is_told_healed_and_told_again_and_so_is_a_dead_daemon(
    scene: Scene, tmp_path: Path
) -> None:
    told = scene.wait_told("FairschedUnfair", tenant="chat", gpu_uuid=scene.uuid)
    assert "away from its entitlement for 3 minutes (limit -5%)" in told["annotations"]["description"]
    assert told["annotations"]["runbook_url"] == "docs/runbooks.md#fairschedunfair"
    error = scene.watch.values("instance:fairsched_share_error:ratio_max")
    assert error, "the recording rules have run"
    assert error[0] > 0.05
    assert scene.watch.has_told("FairschedUnfair", "firing", tenant="batch") is None, (
        "it has too much, not too little"
    )

    since = len(scene.watch.alerts)
    scene.configure("enforce")
    assert scene.site.process is not None
    scene.site.process.send_signal(signal.SIGHUP)
    scene.wait_told("FairschedUnfair", "resolved", since, tenant="chat", gpu_uuid=scene.uuid)
    scene.wait_shown()
    scene.draw(tmp_path / "board.png")
    assert {name for name, _ in scene.told()} - OTHERS == set()

    scene.xid = 79
    fatal = scene.wait_told("DcgmXidFatal", UUID=scene.uuid)
    assert fatal["annotations"]["summary"] == "XID 79 on GPU 0"
    since = len(scene.watch.alerts)
    scene.site.host.report_xid(79)
    fatal = scene.wait_told("FairschedGpuXidFatal", gpu_uuid=scene.uuid)
    assert fatal["annotations"]["summary"] == f"XID 79 on {scene.uuid}"
    scene.wait_told("DcgmXidFatal", "resolved", since, UUID=scene.uuid)  # the same of the same GPU

    scene.site.kill()
    down = scene.wait_told("FairschedDown")
    assert down["labels"]["severity"] == "critical"
    assert {name for name, _ in scene.told()} <= alerts().keys()
