# SPDX-License-Identifier: Apache-2.0
"""Prometheus export of what ``fairsched status`` says.

Problem: a scrape comes at any moment and in a thread of its own, and must neither hold up a tick nor see half of one.

Approach: nothing is kept here. Each scrape asks the daemon for its status over the control socket, as any client does,
and turns the answer into metrics. Without a scrape it costs nothing; a daemon whose loop stands still fails the scrape
instead of showing old numbers. What is not known is left out.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from fairsched.control_client import ControlClient
from fairsched.errors import ConfigError
from fairsched.status import StatusReport, status_from_plain

if TYPE_CHECKING:
    from prometheus_client.registry import Collector
else:
    Collector = object

LOOPBACK = "127.0.0.1"
_ASK_S = 5.0
_HIGHEST_PORT = 65535

logger = logging.getLogger(__name__)


class StatusCollector(Collector):
    """The status, asked for at each scrape."""

    def __init__(self, ask: Callable[[], StatusReport]) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        """Raises what asking raises: the scrape then fails, which is the truth."""
        report = self._ask()
        yield InfoMetricFamily("fairsched_build", "The daemon.", {"version": report.daemon_version})
        yield from _tenants(report)
        yield from _misbehaviour(report)
        if report.fairness_error_ratio is not None:
            yield GaugeMetricFamily(
                "fairsched_fairness_error_ratio",
                "Largest distance of a tenant's share from its entitlement in the last window.",
                report.fairness_error_ratio,
            )
        if report.cpu_ratio is not None:
            yield GaugeMetricFamily(
                "fairsched_cpu_ratio", "What the daemon costs, of one processor.", report.cpu_ratio
            )


def _tenants(report: StatusReport) -> Iterator[Metric]:
    where = ["tenant", "gpu_uuid"]
    time_s = CounterMetricFamily("fairsched_gpu_time_seconds", "GPU time received.", labels=where)
    entitled = GaugeMetricFamily(
        "fairsched_entitlement_ratio", "Part of what the GPU delivers that is the tenant's due.", labels=where
    )
    used = GaugeMetricFamily("fairsched_share_ratio", "Part it got in the last window.", labels=where)
    lag = GaugeMetricFamily(
        "fairsched_lag_seconds", "GPU time it is owed; negative: it is ahead.", labels=where
    )
    held = CounterMetricFamily("fairsched_held_seconds", "Time it was held by fairsched.", labels=["tenant"])
    for tenant in report.tenants:
        for uuid, seconds in tenant.gpu_time_by_gpu_s.items():
            time_s.add_metric([tenant.name, uuid], seconds)
        for gpu in tenant.gpus:
            labels = [tenant.name, gpu.uuid]
            if gpu.entitled_ratio is not None:
                entitled.add_metric(labels, gpu.entitled_ratio)
            if gpu.used_ratio is not None:
                used.add_metric(labels, gpu.used_ratio)
            if gpu.lag_ms is not None:
                lag.add_metric(labels, gpu.lag_ms / 1e3)
        if tenant.held_s is not None:
            held.add_metric([tenant.name], tenant.held_s)
    yield from (time_s, entitled, used, lag, held)


def _misbehaviour(report: StatusReport) -> Iterator[Metric]:
    now = GaugeMetricFamily(
        "fairsched_misbehaving",
        "1 while work of the tenant never ends (endless) or cannot be seen (unseen).",
        labels=["tenant", "gpu_uuid", "kind"],
    )
    ended = CounterMetricFamily(
        "fairsched_terminations", "Processes told to end for it.", labels=["tenant", "kind"]
    )
    for tenant in report.tenants:
        for one in tenant.misbehaviours:
            now.add_metric([tenant.name, one.gpu, one.kind.value], 1)
        for kind, count in tenant.terminations.items():
            ended.add_metric([tenant.name, kind], count)
    yield from (now, ended)


def address_of(listen: str) -> tuple[str, int]:
    """``HOST:PORT``, ``[HOST]:PORT`` or ``:PORT``, which is loopback. Raises ConfigError."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not 1 <= int(port) <= _HIGHEST_PORT:
        raise _refused(listen, f"there is no port {port}", "use a port from 1 to 65535")
    return host or LOOPBACK, int(port)


def _refused(listen: str, why: str, remedy: str) -> ConfigError:
    return ConfigError(f"cannot listen on {listen}: {why}", key="metrics.listen", remedy=remedy)


def serve(listen: str, socket_path: Path) -> contextlib.ExitStack:
    """Answer scrapes until the result is closed. Raises ConfigError when the address cannot be had."""
    host, port = address_of(listen)

    def ask() -> StatusReport:
        return status_from_plain(ControlClient(socket_path, timeout_s=_ASK_S).request("status"))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(ask))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        remedy = "free the address, or set metrics.listen to another one, or to null"
        raise _refused(listen, error.strerror or str(error), remedy) from error
    logger.info("metrics=http://%s:%d/metrics", host, port)
    stack = contextlib.ExitStack()
    stack.callback(thread.join, _ASK_S)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return stack
