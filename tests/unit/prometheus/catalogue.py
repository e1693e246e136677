# SPDX-License-Identifier: Apache-2.0
"""Every name under which Prometheus may find something: ours from the exporter's catalogue, NVIDIA's from this list."""

from __future__ import annotations

from fairsched.companion.exporter.catalogue import families
from fairsched.companion.exporter.family import Kind

DCGM = {
    "DCGM_EXP_XID_ERRORS_COUNT",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_XID_ERRORS",
}
"""What dcgm-exporter calls them (its etc/default-counters.csv, the commented lines included, and fields of DCGM
that an operator adds to it)."""


def samples() -> set[str]:
    """Names of the series that the exporter can show."""
    names = {family.shown for family in families()}
    histograms = [family.name for family in families() if family.kind is Kind.HISTOGRAM]
    return names | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}
