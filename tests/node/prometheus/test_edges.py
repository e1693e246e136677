# SPDX-License-Identifier: Apache-2.0
"""Where each alert begins: just beyond its limit and as soon as its time is over, not just within it and not before.

packaging/prometheus/tests says what a person is told in a story of each; here is the table of limits, written a second
time so that a slip in the rules is one. Recorded series are given as they are: those rules have tests of their own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import is_full
from tests.unit.prometheus.shipped import DIRECTORY, alerts

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="no promtool: sudo make setup installs it (Debian: prometheus)",
)

Series = dict[str, float | str]
"""Series without the labels job and instance -> value, or promtool's notation for many. Other labels may be there."""
STEP_S = 15
XID = "DCGM_FI_DEV_XID_ERRORS"
FATAL_XID = "gpu:dcgm_xid_fatal:last"
FATAL = {48, 62, 64, 74, 79, 95, 119, 120, 140}
OWN_XID = "fairsched_gpu_xid_errors_total"
OWN_FATAL_XID, OWN_OTHER_XID = (
    f"gpu_xid:fairsched_gpu_xid_errors_{what}" for what in ("fatal:max1h", "other:last")
)
REASONS = "gpu:dcgm_clocks_event_reasons:last"
SLOWED = (8, 32, 64, 128)
"""Bits of the reasons: hardware slowdown, software thermal, hardware thermal, power brake."""
HARMLESS = [value for value in range(512) if not value & sum(SLOWED)]
"""All sets of the others: idle, clocks that were asked for, power cap, synchronised, display."""
ERROR, DUE = "tenant_gpu:fairsched_share_error:ratio_avg1m", "tenant_gpu:fairsched_share_of_due:ratio_avg1m"
LAG = "gpu:fairsched_lag_seconds:min2m"
QUEUE = "instance:fairsched_queue_delay_latency_seconds:p99_rate1m"
FLOOR = "fairsched_sli_queue_delay_floor_seconds"
USED, TOTAL = "fairsched_gpu_memory_used_bytes", "fairsched_gpu_memory_total_bytes"
WATTS, LIMIT_WATTS = "fairsched_gpu_power_watts", "fairsched_gpu_power_limit_watts"
DRAWN, MAY_DRAW = "DCGM_FI_DEV_POWER_USAGE", "gpu:dcgm_power_limit_watts:last"
FB_USED, FB_FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"


@dataclass(frozen=True)
class Edge:
    alert: str
    for_s: int
    beyond: Series
    within: Series


def jump(value: float) -> str:
    """From 0 to `value` after two hours of 15 s."""
    return f"0+0x480 {value}+0x60"


def counted(xid: int, count: int = 1) -> Series:
    """As the exporter counts them."""
    return {f'DCGM_EXP_XID_ERRORS_COUNT{{xid="{xid}"}}': count}


def with_labels(series: str, labels: str) -> str:
    name, _, own = series.removesuffix("}").partition("{")
    return f"{name}{{{own}, {labels}}}" if own else f"{name}{{{labels}}}"


def told_by_ours(alert: str, theirs: str, value: float, own: str) -> Edge:
    """dcgm-exporter's series fires unless ours says it of the same GPU."""
    other_gpu = {with_labels(theirs, 'UUID="a"'): value, with_labels(own, 'gpu_uuid="b"'): 1}
    same_gpu = {with_labels(theirs, 'UUID="c"'): value, with_labels(own, 'gpu_uuid="c"'): 1}
    return Edge(alert, 0, other_gpu, same_gpu)


EDGES = (
    Edge("FairschedUnfair", 180, {ERROR: -0.051, LAG: -0.21}, {ERROR: -0.049, LAG: -0.21}),
    Edge("FairschedUnfair", 180, {ERROR: -0.051, LAG: -0.21}, {ERROR: -0.051, LAG: -0.19}),
    Edge(
        "FairschedTokenRateUneven",
        180,
        {"instance:fairsched_token_rate_cv:ratio": 0.05},
        {"instance:fairsched_token_rate_cv:ratio": 0.0499},
    ),
    Edge("FairschedQueueDelayHigh", 180, {QUEUE: 0.0201, FLOOR: 0.01}, {QUEUE: 0.02, FLOOR: 0.01}),
    Edge("FairschedQueueDelayHigh", 180, {QUEUE: 0.0401, FLOOR: 0.04}, {QUEUE: 0.04, FLOOR: 0.04}),
    Edge("FairschedTenantStarved", 180, {DUE: 0.49, LAG: -0.21}, {DUE: 0.5, LAG: -0.21}),
    Edge("FairschedTenantStarved", 180, {DUE: 0.49, LAG: -0.21}, {DUE: 0.49, LAG: -0.19}),
    Edge(
        "FairschedHeldTooLong",
        30,
        {"fairsched_hold_age_seconds": 3.1, "fairsched_hold_limit_seconds": 2},
        {"fairsched_hold_age_seconds": 3, "fairsched_hold_limit_seconds": 2},
    ),
    Edge("FairschedLowConfidence", 600, {"fairsched_low_confidence": 1}, {"fairsched_low_confidence": 0}),
    Edge("FairschedMisbehaving", 60, {"fairsched_misbehaving": 1}, {"fairsched_misbehaving": 0}),
    Edge("FairschedDown", 60, {"up": 0, "fairsched_up": 1}, {"up": 1, "fairsched_up": 1}),
    Edge("FairschedDown", 60, {"up": 1, "fairsched_up": 0}, {"up": 1, "fairsched_up": 1}),
    Edge("FairschedEscalated", 0, {"fairsched_escalation_level": 1}, {"fairsched_escalation_level": 0}),
    Edge("FairschedConfigRefused", 300, {"fairsched_config_error": 1}, {"fairsched_config_error": 0}),
    Edge("FairschedGpuLost", 30, {"fairsched_gpu_up": 0}, {"fairsched_gpu_up": 1}),
    Edge(
        "FairschedGpuHot",
        300,
        {"fairsched_gpu_temperature_celsius": 86},
        {"fairsched_gpu_temperature_celsius": 85},
    ),
    Edge(
        "FairschedGpuSaturated",
        300,
        {"fairsched_gpu_utilization_ratio": 0.951},
        {"fairsched_gpu_utilization_ratio": 0.95},
    ),
    Edge("FairschedGpuPowerHigh", 300, {WATTS: 631, LIMIT_WATTS: 700}, {WATTS: 629, LIMIT_WATTS: 700}),
    Edge("FairschedGpuMemoryFull", 300, {USED: 951, TOTAL: 1000}, {USED: 949, TOTAL: 1000}),
    Edge("FairschedGpuXidFatal", 0, {OWN_FATAL_XID: 1}, {OWN_XID + '{xid="79"}': 1}),
    Edge("FairschedGpuXid", 0, {OWN_OTHER_XID: 1}, {OWN_XID + '{xid="31"}': 1}),
    Edge("DcgmXidFatal", 0, {FATAL_XID: 79}, {XID: 79}),
    *(
        told_by_ours(alert, theirs, value, own)
        for alert, theirs, value, own in (
            ("DcgmXidFatal", FATAL_XID, 79, OWN_FATAL_XID),
            ("DcgmXid", XID, 13, OWN_OTHER_XID),
            ("DcgmXid", XID, 79, OWN_FATAL_XID),
            ("DcgmXidFatalCounted", 'DCGM_EXP_XID_ERRORS_COUNT{xid="79"}', 1, OWN_FATAL_XID),
            ("DcgmXidCounted", 'DCGM_EXP_XID_ERRORS_COUNT{xid="13"}', 1, OWN_OTHER_XID),
        )
    ),
    Edge("DcgmXid", 0, {XID: 13}, {XID: 0}),
    *(Edge("DcgmXidFatalCounted", 0, counted(code), counted(13)) for code in sorted(FATAL)),
    *(Edge("DcgmXidFatalCounted", 0, counted(79), counted(code)) for code in sorted({*range(160)} - FATAL)),
    Edge("DcgmXidFatalCounted", 0, counted(79), counted(79, 0)),
    *(Edge("DcgmXidCounted", 0, counted(13), counted(code)) for code in sorted({0, *FATAL})),
    *(Edge("DcgmXidCounted", 0, counted(code), counted(79)) for code in sorted({*range(1, 160)} - FATAL)),
    Edge("DcgmXidCounted", 0, counted(13), counted(13, 0)),
    Edge("DcgmRowRemapFailed", 0, {"DCGM_FI_DEV_ROW_REMAP_FAILURE": 1}, {"DCGM_FI_DEV_ROW_REMAP_FAILURE": 0}),
    *(
        Edge("DcgmThrottled", 300, {REASONS: bit + other}, {REASONS: other})
        for bit in SLOWED
        for other in HARMLESS
    ),
    Edge("DcgmGpuHot", 300, {"DCGM_FI_DEV_GPU_TEMP": 86}, {"DCGM_FI_DEV_GPU_TEMP": 85}),
    Edge("DcgmGpuSaturated", 300, {"DCGM_FI_DEV_GPU_UTIL": 95.1}, {"DCGM_FI_DEV_GPU_UTIL": 95}),
    Edge("DcgmGpuPowerHigh", 300, {DRAWN: 631, MAY_DRAW: 700}, {DRAWN: 629, MAY_DRAW: 700}),
    Edge("DcgmGpuMemoryFull", 300, {FB_USED: 951, FB_FREE: 49}, {FB_USED: 949, FB_FREE: 51}),
    Edge("DcgmMemoryHot", 300, {"DCGM_FI_DEV_MEMORY_TEMP": 96}, {"DCGM_FI_DEV_MEMORY_TEMP": 95}),
)
COUNTED = (
    # What is grown by is extrapolated to the whole range, by some percent: the limit is not hit exactly.
    Edge(
        "FairschedCompanionRestarting",
        0,
        {"fairsched_companion_restarts_total": jump(2)},
        {"fairsched_companion_restarts_total": jump(1.5)},
    ),
    Edge("FairschedActionsFailing", 60, {"fairsched_errors_total": jump(1)}, {"fairsched_errors_total": 7}),
    Edge(
        "FairschedBpfDropped",
        60,
        {"fairsched_bpf_dropped_total": jump(1)},
        {"fairsched_bpf_dropped_total": 7},
    ),
    Edge(
        "DcgmEccCorrectable",
        0,
        {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": jump(101)},
        {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": jump(98)},
    ),
    *(
        Edge("DcgmEccUncorrectable", 0, {name: jump(1)}, {name: 7})
        for name in ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS")
    ),
)
JUMP_S = 481 * STEP_S


def firing(alert: str, at_s: int, count: int) -> dict[str, Any]:
    return {
        "expr": f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)',
        "eval_time": f"{at_s}s",
        "exp_samples": [{"labels": "{}", "value": count}],
    }


def story(edge: Edge, begin_s: int) -> dict[str, Any]:
    """promtool's test of one edge, which is crossed at `begin_s`."""

    def given(series: Series, instance: str) -> list[dict[str, str]]:
        return [
            {
                "series": with_labels(name, f'job="fairsched", instance="{instance}"'),
                "values": value if isinstance(value, str) else f"{value}+0x600",
            }
            for name, value in series.items()
        ]

    before = [firing(edge.alert, begin_s + edge.for_s - STEP_S, 0)] if begin_s + edge.for_s else []
    return {
        "name": f"{edge.alert} {edge.beyond} {edge.within}",
        "interval": f"{STEP_S}s",
        "input_series": [*given(edge.beyond, "beyond"), *given(edge.within, "within")],
        "promql_expr_test": [*before, firing(edge.alert, begin_s + edge.for_s, 1)],
    }


def promtool(tests: list[dict[str, Any]], rules: Path, where: Path) -> subprocess.CompletedProcess[str]:
    path = where / "edges.yml"
    document = {"rule_files": [str(rules)], "evaluation_interval": f"{STEP_S}s", "tests": tests}
    path.write_text(yaml.safe_dump(document))
    return subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )


def stories() -> list[dict[str, Any]]:
    nobody = {
        "name": "FairschedAbsent",
        "interval": f"{STEP_S}s",
        "input_series": [{"series": 'up{job="node"}', "values": "1+0x600"}],
        "promql_expr_test": [firing("FairschedAbsent", 300 - STEP_S, 0), firing("FairschedAbsent", 300, 1)],
    }
    return [*(story(edge, 0) for edge in EDGES), *(story(edge, JUMP_S) for edge in COUNTED), nobody]


@pytest.mark.rest
def test_each_alert_begins_where_it_should(tmp_path: Path) -> None:
    assert {edge.alert for edge in (*EDGES, *COUNTED)} | {"FairschedAbsent"} == set(alerts())
    done = promtool(stories(), DIRECTORY / "fairsched.alerts.yml", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fatal_errors_are_those_of_the_hardware(tmp_path: Path) -> None:
    """The recording rule, on a GPU for each number."""
    told = [{"series": f'{XID}{{gpu="{code}"}}', "values": f"{code}+0x4"} for code in range(160)]
    expected = [{"labels": f'{FATAL_XID}{{gpu="{code}"}}', "value": code} for code in sorted(FATAL)]
    asked = [{"expr": FATAL_XID, "eval_time": f"{STEP_S}s", "exp_samples": expected}]
    play = {"interval": f"{STEP_S}s", "input_series": told, "promql_expr_test": asked}
    done = promtool([play], DIRECTORY / "fairsched.rules.yml", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fatal_errors_of_our_own_count_are_the_same(tmp_path: Path) -> None:
    """And all others are in the other rule; what was not counted is in neither."""
    told = [{"series": f'{OWN_XID}{{xid="{code}"}}', "values": "1+0x4"} for code in range(160)]
    told += [{"series": f'{OWN_XID}{{xid="{code}", gpu_uuid="b"}}', "values": "0+0x4"} for code in range(160)]
    asked = [
        {
            "expr": name,
            "eval_time": f"{STEP_S}s",
            "exp_samples": [{"labels": f'{name}{{xid="{code}"}}', "value": 1} for code in sorted(codes)],
        }
        for name, codes in ((OWN_FATAL_XID, FATAL), (OWN_OTHER_XID, {*range(160)} - FATAL))
    ]
    play = {"interval": f"{STEP_S}s", "input_series": told, "promql_expr_test": asked}
    done = promtool([play], DIRECTORY / "fairsched.rules.yml", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def slips(rule: dict[str, Any]) -> list[dict[str, Any]]:
    """The rule with each of its numbers a third too high or too low, and with other times."""
    found = []
    for number in re.finditer(r"(?<![\w.:\[$-])\d+(?:\.\d+)?(?![\w.])", rule["expr"]):
        for factor in (0.7, 1.3) if float(number[0]) else ():
            text = rule["expr"]
            text = f"{text[: number.start()]}{float(number[0]) * factor:g}{text[number.end() :]}"
            found.append({**rule, "expr": text})
    if "for" in rule:
        found += [{**rule, "for": "0s"}, {**rule, "for": "1h"}]
    return found


def test_a_slip_in_a_limit_is_noticed(tmp_path: Path) -> None:
    """One for each alert; with FAIRSCHED_FULL=1 every one, which takes a minute."""
    path, missed = tmp_path / "rules.yml", []
    for name, rule in alerts().items():
        about = [one for one in stories() if one["name"].split()[0] == name]
        for slip in slips(rule) if is_full() else slips(rule)[-1:]:
            path.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [slip]}]}))
            if promtool(about, path, tmp_path).returncode == 0:
                missed.append((name, " ".join(slip["expr"].split()), slip.get("for")))
    assert not missed, "\n".join(map(str, missed))
