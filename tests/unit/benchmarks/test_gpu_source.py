# SPDX-License-Identifier: Apache-2.0
"""The GPU checks on another account than that of eBPF."""

from __future__ import annotations

import pytest

from benchmarks.gpu.__main__ import parse
from benchmarks.rig import SOURCES, on_source
from fairsched.config import from_bytes


def test_on_another_account_only_shares_are_measured() -> None:
    assert parse(["--source", "trace"]).only == ["fairness"]
    assert parse([]).only is None
    with pytest.raises(SystemExit) as refused:
        parse(["--source", "nvml", "--only", "freeze"])
    assert refused.value.code == 2


@pytest.mark.parametrize("source", SOURCES)
def test_each_is_a_configuration_that_is_accepted(source: str) -> None:
    told = on_source(source)
    mechanisms = ", ".join(f"{key}: {value}" for key, value in told["mechanisms"].items())
    config = from_bytes(f"gpu: {{source: {source}}}\nmechanisms: {{{mechanisms}}}".encode(), "f")
    assert config.gpu.source == source
    assert config.mechanisms.trace == {"trace": "required", "nvml": "off"}.get(source, "auto")
