# SPDX-License-Identifier: Apache-2.0
"""Begins to load the BPF programs before anything else is looked at: it takes longest."""

from __future__ import annotations

from fairsched.bpf.child import LoaderInStart
from fairsched.config import Config
from fairsched.host.choose import switched_off


def start_loader(config: Config) -> LoaderInStart | None:
    """Begin to load the programs that the sensors will want; None where the configuration wants none."""
    if switched_off(config, "ebpf") is not None or config.gpu.source not in ("auto", "ebpf"):
        return None
    return LoaderInStart()
