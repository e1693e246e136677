# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads: the status, in base units; what is not known is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairsched.companion.exporter import gpm, xids
from fairsched.companion.exporter.book import TEXT, write
from fairsched.companion.exporter.catalogue import BY_NAME
from fairsched.companion.exporter.readings import Own, read
from fairsched.model import MisbehaviourKind
from fairsched.protocol.status import (
    DriverCallsStatus,
    GateState,
    MisbehaviourStatus,
    SliStatus,
    StatusReport,
    TenantState,
    TenantStatus,
    TokenRate,
    VramStatus,
    status_from_plain,
    to_plain,
)
from tests.unit.companion.exporter import made_reports
from tests.unit.protocol import fakes

GPU = fakes.GPU
OTHERS = ("fairsched_escalation_", "fairsched_guard_")
"""Families that other parts fill."""


def scraped(
    report: StatusReport | None, own: Own | None = None, most: int = 256
) -> dict[tuple[str, ...], float]:
    """(name, values of its labels by label name) -> value."""
    text = write(read(report, own or Own(), most), TEXT).decode()
    return {
        (one.name, *(one.labels[key] for key in sorted(one.labels))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_the_gate_is_exported_where_there_is_one() -> None:
    on = scraped(replace(fakes.status(), gate=fakes.gate()))
    assert on["fairsched_device_gate",] == 1
    assert (on["fairsched_denied_opens_total", "batch"], on["fairsched_blind_opens_total",]) == (12, 0)
    failed = scraped(replace(fakes.status(), gate=fakes.gate(state=GateState.FAILED, blind=None)))
    assert failed["fairsched_device_gate",] == 0
    for gate in (None, fakes.gate(state=GateState.OFF)):
        assert not any(
            "gate" in key[0] or "opens" in key[0] for key in scraped(replace(fakes.status(), gate=gate))
        )


def test_the_gate_survives_the_way_through_the_socket() -> None:
    report = replace(fakes.status(), gate=fakes.gate(warnings=("a",), reason="b"))
    assert status_from_plain(to_plain(report)).gate == report.gate


def bad_tenant() -> TenantStatus:
    episodes = tuple(
        MisbehaviourStatus(kind, 1_700_000_000.0, gpu, "4 contexts", "terminate")
        for kind, gpu in ((MisbehaviourKind.ENDLESS, GPU), (MisbehaviourKind.UNSEEN, "GPU-b"))
    )
    return TenantStatus(
        name="bad",
        state=TenantState.RUN,
        weight=1,
        held_by_reason_s={"over_entitlement": 1.5},
        gpu_time_s=3.0,
        gpu_time_by_gpu_s={GPU: 2.0, "GPU-b": 1.0},
        misbehaviour=episodes[0],
        misbehaviours=episodes,
        terminations={"endless": 2},
    )


def test_every_number_has_its_name_and_unit() -> None:
    found = scraped(replace(fakes.status(), tenants=(*fakes.status().tenants, bad_tenant())))
    assert found["fairsched_up",] == 1
    assert found["fairsched_build_info", "0.1.0"] == 1
    assert found["fairsched_mode_info", "enforce"] == 1
    assert found["fairsched_source_info", "ebpf"] == 1
    assert found["fairsched_start_time_seconds",] == pytest.approx(1_700_000_000.137 - 7980)
    assert found["fairsched_gpu_time_seconds_total", GPU, "bad"] == 2.0
    assert found["fairsched_gpu_time_seconds_total", "GPU-b", "bad"] == 1.0
    assert found["fairsched_entitlement_ratio", GPU, "chat"] == 0.8
    assert found["fairsched_share_ratio", GPU, "chat"] == 0.792
    assert found["fairsched_lag_seconds", GPU, "chat"] == pytest.approx(0.00825)
    assert found["fairsched_held_seconds_total", "over_entitlement", "bad"] == 1.5
    assert found["fairsched_misbehaving", GPU, "endless", "bad"] == 1
    assert found["fairsched_misbehaving", "GPU-b", "unseen", "bad"] == 1
    assert found["fairsched_terminations_total", "endless", "bad"] == 2
    assert found["fairsched_fairness_error_ratio",] == 0.012
    assert (found["fairsched_low_confidence", "chat"], found["fairsched_weight", "chat"]) == (0, 4)
    states = {
        key[1]: value
        for key, value in found.items()
        if key[0] == "fairsched_tenant_state" and key[2] == "bad"
    }
    assert states == {**{state.value: 0 for state in TenantState}, "run": 1}


def test_limits_of_memory_are_told_of_tenants_that_have_one() -> None:
    vram = (
        VramStatus(GPU, 8 << 30, 3 << 30, "ioctls", True, 2),
        VramStatus("GPU-b", 8 << 30, None, over_since_s=1.0, action="hold"),
    )
    tenant = TenantStatus("chat", TenantState.RUN, 1, vram_limit_bytes=8 << 30, vram=vram)
    found = scraped(replace(fakes.status(), tenants=(tenant, bad_tenant())))
    mine = {key: value for key, value in found.items() if key[0].startswith("fairsched_vram_")}
    assert mine == {
        ("fairsched_vram_limit_bytes", "chat"): 8 << 30,
        ("fairsched_vram_limited_bytes", GPU, "chat"): 3 << 30,
        ("fairsched_vram_over", GPU, "chat"): 0,
        ("fairsched_vram_over", "GPU-b", "chat"): 1,
        ("fairsched_vram_refused_total", GPU, "chat"): 2,
        ("fairsched_vram_refused_total", "GPU-b", "chat"): 0,
    }
    assert status_from_plain(to_plain(replace(fakes.status(), tenants=(tenant,)))).tenants == (tenant,)


def test_what_is_not_known_is_not_exported() -> None:
    tenant = TenantStatus(name="chat", state=TenantState.IDLE, weight=1)
    report = replace(fakes.status(), tenants=(tenant,), gpus=(), fairness_error_ratio=None, source=None)
    always = {
        "build_info",
        "mode_info",
        "up",
        "start_time_seconds",
        "config_error",
        "warnings",
        "window_seconds",
    }
    always |= {"weight", "tenant_info", "tenant_state", "exporter_tenants_left_out"}
    assert {key[0].removeprefix("fairsched_") for key in scraped(report)} == always
    nan = replace(report, cpu_ratio=float("nan"))
    assert ("fairsched_cpu_ratio",) not in scraped(nan), "no number is no value"


def test_a_daemon_that_does_not_answer_is_all_that_is_said() -> None:
    own = Own({"200": 3}, {"too_slow": 1}, 0.01)
    assert scraped(None, own) == {
        ("fairsched_up",): 0,
        ("fairsched_exporter_requests_total", "200"): 3,
        ("fairsched_exporter_refused_total", "too_slow"): 1,
        ("fairsched_exporter_render_seconds",): 0.01,
    }


def test_a_status_with_misbehaviour_survives_the_wire() -> None:
    report = replace(fakes.status(), tenants=(bad_tenant(),))
    assert status_from_plain(to_plain(report)) == report


def test_everything_survives_the_wire_and_a_newer_daemon_may_say_more() -> None:
    report = made_reports.full()
    plain = to_plain(report)
    assert status_from_plain(plain) == report
    plain["own"]["novel"] = plain["tenants"][0]["novel"] = 1
    assert status_from_plain(plain) == report
    del plain["own"], plain["bpf_counts"]
    assert status_from_plain(plain) == replace(report, own=None, bpf_counts={}), "so does an older one"


def test_what_the_driver_is_asked_for_is_exported_where_it_is_seen() -> None:
    tenant = TenantStatus(
        name="chat",
        state=TenantState.RUN,
        weight=1,
        contexts_by_gpu={GPU: 2},
        vram_by_gpu_bytes={GPU: 1024},
        driver_calls=DriverCallsStatus(ioctls=9, failed=1, time_s=0.5, opens=3),
    )
    report = replace(fakes.status(), tenants=(tenant,), driver_counts={"call_lost": 4})
    assert not [key for key in scraped(report) if "driver" in key[0] or "vram" in key[0]]
    seen = replace(report, driver_hook="kprobe")
    assert status_from_plain(to_plain(seen)) == seen
    found = scraped(seen)
    assert found["fairsched_contexts", GPU, "chat"] == 2
    assert found["fairsched_vram_bytes", GPU, "chat"] == 1024
    assert found["fairsched_driver_ioctls_total", "chat"] == 9
    assert found["fairsched_driver_ioctls_failed_total", "chat"] == 1
    assert found["fairsched_driver_ioctl_seconds_total", "chat"] == 0.5
    assert found["fairsched_driver_opens_total", "chat"] == 3
    assert found["fairsched_driver_missed_total", "call_lost"] == 4
    assert found["fairsched_bpf_dropped_total", "driver", "call_lost"] == 4


def test_the_pid_view_is_exported_where_it_is_wanted() -> None:
    assert ("fairsched_pid_view",) not in scraped(fakes.status())
    for is_on in (False, True):
        found = scraped(replace(fakes.status(), pid_view={"is_on": is_on, "reason": "r"}))
        assert found["fairsched_pid_view",] == is_on


def test_what_bpf_lost_is_told_apart_from_what_it_coped_with() -> None:
    found = scraped(made_reports.full())
    mine = {key[1:]: value for key, value in found.items() if key[0] == "fairsched_bpf_dropped_total"}
    assert mine == {("gpu_time", "edge_dropped"): 5, ("driver", "call_lost"): 4}
    coped = {key[1:]: value for key, value in found.items() if key[0] == "fairsched_bpf_errors_total"}
    assert coped == {("gpu_time", "clock_race"): 6, ("driver", "bad_read"): 1, ("pid_view", "book_full"): 1}


def test_what_nvml_said_that_cannot_be_is_exported() -> None:
    assert not [key for key in scraped(fakes.status()) if "nvml" in key[0]]
    assert scraped(made_reports.full())["fairsched_nvml_odd_answers_total", "fallen_sum"] == 2
    assert scraped(made_reports.full())["fairsched_trace_oddities_total", "holes"] == 3


def test_the_service_levels_are_in_base_units() -> None:
    assert not [key for key in scraped(fakes.status()) if "sli" in key[0] or key[0] == "fairsched_is_fair"]
    found = scraped(made_reports.full(tenants=1))
    assert found["fairsched_sli_queue_delay_p99_seconds",] == pytest.approx(0.0125)
    assert (found["fairsched_is_fair",], found["fairsched_sli_token_rate_cv_ratio",]) == (1, 0.012)
    assert found["fairsched_tokens_per_second", "tenant-0000"] == 51.5
    unknown = replace(fakes.status(), slis=SliStatus(is_fair=None))
    assert not [key for key in scraped(unknown) if "sli" in key[0] or key[0] == "fairsched_is_fair"]


def test_a_full_report_fills_every_family_that_the_report_can_fill() -> None:
    """A line of the catalogue that nothing fills is a promise that nobody keeps."""
    own = Own({"200": 1}, {"too_slow": 1}, 0.01, 0.5)
    book = read(made_reports.full(), own)
    filled = {*book.rows, *book.histograms}
    assert filled <= BY_NAME.keys(), "what the catalogue does not know is not written"
    assert {name for name in BY_NAME if name not in filled and not name.startswith(OTHERS)} == {
        gpm.FAMILY,
        xids.FAMILY,
    }
    for name, rows in (*book.rows.items(), *book.histograms.items()):
        wanted = len(BY_NAME[name].labels)
        assert {len(labels) for labels, _ in rows} == {wanted}, name
        assert len({labels for labels, _ in rows}) == len(rows), f"{name}: a series twice"


def test_tenants_beyond_the_limit_are_counted_and_in_no_series() -> None:
    report = made_reports.full(tenants=5, gpus=1)
    found = scraped(report, most=3)
    assert found["fairsched_exporter_tenants_left_out",] == 2
    named = {part for key in found for part in key[1:] if part.startswith("tenant-")}
    assert named == {f"tenant-{number:04d}" for number in range(3)}
    assert scraped(report, most=5)["fairsched_exporter_tenants_left_out",] == 0


def test_a_tenant_that_is_gone_is_gone_from_the_next_page() -> None:
    report = made_reports.full(tenants=2)
    assert any("tenant-0001" in key for key in scraped(report))
    assert not any("tenant-0001" in key for key in scraped(replace(report, tenants=report.tenants[:1])))


def test_tokens_that_are_not_known_are_not_zero() -> None:
    tenant = replace(made_reports.tenant("chat"), tokens=TokenRate(None, None, failures=3))
    found = scraped(replace(fakes.status(), tenants=(tenant,)))
    tokens = {key: value for key, value in found.items() if "token" in key[0]}
    assert tokens == {("fairsched_token_page_failures_total", "chat"): 3}
