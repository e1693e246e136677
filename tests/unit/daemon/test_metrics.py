# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads: the status, in base units; what is not known is left out."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fairsched.errors import ConfigError
from fairsched.metrics import StatusCollector, address_of, serve
from fairsched.model import MisbehaviourKind
from fairsched.status import (
    MisbehaviourStatus,
    StatusReport,
    TenantState,
    TenantStatus,
    status_from_plain,
    to_plain,
)
from tests.unit.control import fakes

GPU = fakes.GPU


def scraped(report: StatusReport) -> dict[tuple[str, ...], float]:
    """(name, values of its labels by label name) -> value."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(lambda: report))
    text = generate_latest(registry).decode()
    return {
        (one.name, *(one.labels[key] for key in sorted(one.labels))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def bad_tenant() -> TenantStatus:
    episodes = tuple(
        MisbehaviourStatus(kind, 1_700_000_000.0, gpu, "4 contexts", "terminate")
        for kind, gpu in ((MisbehaviourKind.ENDLESS, GPU), (MisbehaviourKind.UNSEEN, "GPU-b"))
    )
    return TenantStatus(
        name="bad",
        state=TenantState.RUN,
        weight=1,
        held_s=1.5,
        gpu_time_s=3.0,
        gpu_time_by_gpu_s={GPU: 2.0, "GPU-b": 1.0},
        misbehaviour=episodes[0],
        misbehaviours=episodes,
        terminations={"endless": 2},
    )


def test_every_number_has_its_name_and_unit() -> None:
    found = scraped(replace(fakes.status(), tenants=(*fakes.status().tenants, bad_tenant())))
    assert found["fairsched_build_info", "0.1.0"] == 1
    assert found["fairsched_gpu_time_seconds_total", GPU, "bad"] == 2.0
    assert found["fairsched_gpu_time_seconds_total", "GPU-b", "bad"] == 1.0
    assert found["fairsched_entitlement_ratio", GPU, "chat"] == 0.8
    assert found["fairsched_share_ratio", GPU, "chat"] == 0.792
    assert found["fairsched_lag_seconds", GPU, "chat"] == pytest.approx(0.00825)
    assert found["fairsched_held_seconds_total", "bad"] == 1.5
    assert found["fairsched_misbehaving", GPU, "endless", "bad"] == 1
    assert found["fairsched_misbehaving", "GPU-b", "unseen", "bad"] == 1
    assert found["fairsched_terminations_total", "endless", "bad"] == 2
    assert found["fairsched_fairness_error_ratio",] == 0.012


def test_what_is_not_known_is_not_exported() -> None:
    tenant = TenantStatus(name="chat", state=TenantState.IDLE, weight=1)
    found = scraped(replace(fakes.status(), tenants=(tenant,), fairness_error_ratio=None))
    assert [key for key in found if key[0] != "fairsched_build_info"] == []


def test_a_status_with_misbehaviour_survives_the_wire() -> None:
    report = replace(fakes.status(), tenants=(bad_tenant(),))
    assert status_from_plain(to_plain(report)) == report


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        (":9477", ("127.0.0.1", 9477)),
        ("0.0.0.0:9477", ("0.0.0.0", 9477)),
        ("[::1]:9477", ("::1", 9477)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_addresses(listen: str, address: tuple[str, int]) -> None:
    assert address_of(listen) == address


@pytest.mark.parametrize("listen", [":0", ":65536", "localhost:99999"])
def test_a_port_that_is_none_is_a_mistake_with_a_key(listen: str) -> None:
    with pytest.raises(ConfigError) as caught:
        address_of(listen)
    assert "metrics.listen" in str(caught.value)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_scrape_asks_the_daemon_and_the_port_is_given_back(tmp_path: Path) -> None:
    path, port = tmp_path / "s", free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    with fakes.serving(path), serve(f":{port}", path):
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b'fairsched_build_info{version="0.1.0"} 1.0' in answer.read()
        with pytest.raises(ConfigError, match="cannot listen on"):
            serve(f"127.0.0.1:{port}", path)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=60)
    serve(f":{port}", path).close()


def test_a_daemon_that_does_not_answer_fails_the_scrape(tmp_path: Path) -> None:
    port = free_port()
    with serve(f":{port}", tmp_path / "nobody"), pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
    assert caught.value.code == 500
