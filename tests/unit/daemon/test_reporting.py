# SPDX-License-Identifier: Apache-2.0
"""What status says besides numbers: the reasons it gives are those of this daemon, now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairsched import reporting
from fairsched.model import Confidence, Source
from fairsched.reporting import Vitals
from fairsched.status import TenantGpuStatus


def sensors(**values: Any) -> Any:
    default: dict[str, Any] = {
        "source": Source.EBPF,
        "reason": None,
        "probe": None,
        "account": None,
        "nvml": None,
    }
    return SimpleNamespace(**{**default, **values})


def probe(**counts: int) -> SimpleNamespace:
    return SimpleNamespace(libraries=["libcuda.so.1"], counts=lambda: counts)


def warnings(mode: str = "enforce", **values: Any) -> list[str]:
    vitals = Vitals(0, 0, mode, None, 100, None, 0, 0)
    return list(reporting._warnings(vitals, cast(Any, SimpleNamespace(error=None)), sensors(**values)))


def test_all_is_well_and_nothing_is_said() -> None:
    assert warnings(probe=probe(ctx_full=0)) == []


def test_to_ask_for_holds_where_samples_are_all_there_is_is_warned_of() -> None:
    (said,) = warnings(source=Source.NVML, reason="bcc is not installed")
    assert "nobody is held although the mode is enforce" in said
    assert "doctor" in said
    for mode in ("observe", "dry_run"):
        assert warnings(mode, source=Source.NVML) == []


@pytest.mark.parametrize(
    "what", ["ctx_full", "use_full", "proc_full", "handle_full", "edge_dropped", "clock_range"]
)
def test_what_bpf_could_not_count_is_said(what: str) -> None:
    assert warnings(probe=probe(**{what: 3, "dep_dropped": 5})) == [f"BPF counted {what}: 3"]


@pytest.mark.parametrize(
    ("confidence", "is_sampled", "says"),
    [
        (Confidence.HIGH, False, None),
        (Confidence.LOW, False, "launches without a call that proves completion: observed, not held"),
        (Confidence.LOW, True, "NVML samples only: observed, not held"),
    ],
)
def test_the_note_names_why_a_tenant_is_not_held(
    confidence: Confidence, is_sampled: bool, says: str | None
) -> None:
    assert reporting._note(TenantGpuStatus("GPU-a", confidence=confidence), is_sampled=is_sampled) == says
    assert reporting._note(None, is_sampled=is_sampled) is None
