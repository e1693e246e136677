# SPDX-License-Identifier: Apache-2.0
"""Which export gets which program: every spelling, the versions that moved an argument, and nothing forgotten."""

from __future__ import annotations

import re

import pytest

from fairsched.bpf import compiler, exports, loader
from fairsched.bpf.exports import Probe, choose_probe, choose_probes

_NAME = re.compile(r"\w+")

SUBMITS = _NAME.findall("""
cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel cuLaunchCooperativeKernelMultiDevice cuGraphLaunch
cuLaunchHostFunc cuMemcpyAsync cuMemcpyPeerAsync cuMemcpyHtoDAsync cuMemcpyDtoHAsync cuMemcpyDtoDAsync
cuMemcpy2DAsync cuMemcpy3DAsync cuMemcpyBatchAsync cuMemcpy3DBatchAsync cuMemcpyWithAttributesAsync
cuMemcpy3DWithAttributesAsync cuMemsetD8Async cuMemsetD16Async cuMemsetD32Async cuMemsetD2D8Async
cuMemsetD2D16Async cuMemsetD2D32Async cuMemPrefetchAsync cuMemPrefetchBatchAsync cuMemDiscardBatchAsync
cuStreamBatchMemOp cuStreamWaitValue32 cuStreamWaitValue64
""")
COMPLETES = _NAME.findall("""
cuStreamSynchronize cuCtxSynchronize cuEventSynchronize cuEventQuery cuStreamQuery cuMemcpy cuMemcpyHtoD
cuMemcpyDtoH cuMemcpy2D cuMemcpy3D cuMemFree cuCtxDestroy cuDevicePrimaryCtxReset
""")
LINKS = _NAME.findall("""
cuInit cuEventRecord cuEventRecordWithFlags cuStreamWaitEvent cuCtxSetCurrent cuCtxPushCurrent cuStreamDestroy
""")
LEFT_OUT = _NAME.findall(
    "cuMemsetD8 cuMemsetD16 cuMemsetD32 cuMemsetD2D8 cuMemsetD2D16 cuMemsetD2D32 cuMemcpyDtoD"
)
"""Possibly asynchronous to the host: their return proves nothing (exports.py says so)."""

SPELLINGS = ("", "_v2", "_v3", "_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds", "_v7_ptsz")

SOURCE = compiler.flatten(compiler.HERE / loader.SOURCE)
PROGRAMS = set(re.findall(r"^int (on_\w+)\(struct pt_regs", SOURCE, re.MULTILINE))
PROGRAMS |= set(re.findall(r"^(?:SUBMIT|REMEMBER)\((on_\w+),", SOURCE, re.MULTILINE))


@pytest.mark.parametrize("name", [*SUBMITS, *COMPLETES, *LINKS])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_what_matters_is_probed(name: str, spelling: str) -> None:
    assert choose_probe(name + spelling) is not None


@pytest.mark.parametrize("name", SUBMITS)
def test_a_submit_is_probed_at_its_entry_only(name: str) -> None:
    probe = choose_probe(name)
    assert probe is not None
    assert probe.entry is not None
    assert probe.entry.startswith(("on_submit_", "on_copy_"))
    assert probe.on_return is None


@pytest.mark.parametrize("name", COMPLETES)
def test_what_proves_completion_is_probed_on_its_return(name: str) -> None:
    probe = choose_probe(name)
    assert probe is not None
    assert probe.on_return in ("on_sync_return", "on_drop_return")


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_return_that_proves_nothing_is_left_out(name: str) -> None:
    assert [choose_probe(name + spelling) for spelling in SPELLINGS] == [None] * len(SPELLINGS)


@pytest.mark.parametrize(
    ("symbol", "entry"),
    [
        ("cuLaunchKernel", "on_submit_a9"),
        ("cuLaunchKernel_ptsz", "on_submit_a9_pt"),
        ("cuMemcpyHtoDAsync_v2_ptsz", "on_copy_a4_pt"),
        ("cuMemcpyHtoD_v2_ptds", "on_sync_copy_pt"),
        ("cuStreamQuery_ptsz", "on_sync_stream_pt"),
        ("cuEventRecord_ptsz", "on_record_pt"),
        ("cuStreamWaitEvent_ptsz", "on_wait_pt"),
        # an event or a context is the same whatever stream 0 means
        ("cuEventQuery_ptsz", "on_sync_event"),
        ("cuCtxSynchronize_v2", "on_sync_ctx"),
    ],
)
def test_the_suffix_decides_what_stream_0_means(symbol: str, entry: str) -> None:
    probe = choose_probe(symbol)
    assert probe is not None
    assert probe.entry == entry


@pytest.mark.parametrize(
    ("symbol", "entry"),
    [
        ("cuCtxCreate", "on_ctx_new_a3"),
        ("cuCtxCreate_v2", "on_ctx_new_a3"),
        ("cuCtxCreate_v3", "on_ctx_new_a5"),
        ("cuCtxCreate_v4", "on_ctx_new_a4"),
        ("cuMemcpyBatchAsync", "on_copy_a9"),
        ("cuMemcpyBatchAsync_ptsz", "on_copy_a9_pt"),
        ("cuMemcpyBatchAsync_v2", "on_copy_a8"),
        ("cuMemcpyBatchAsync_v2_ptsz", "on_copy_a8_pt"),
        ("cuMemcpy3DBatchAsync", "on_copy_a5"),
        ("cuMemcpy3DBatchAsync_v2", "on_copy_a4"),
        ("cuMemPrefetchAsync", "on_copy_a4"),
        ("cuMemPrefetchAsync_v2_ptsz", "on_copy_a5_pt"),
    ],
)
def test_a_version_that_moved_an_argument_has_its_own_program(symbol: str, entry: str) -> None:
    probe = choose_probe(symbol)
    assert probe is not None
    assert probe.entry == entry


@pytest.mark.parametrize(
    "symbol",
    [
        "",
        "cu",
        "cuGetProcAddress_v2",
        "cuLaunchKernelX",
        "xcuLaunchKernel",
        "cuLaunchKernel_v2_ptszz",
        "cudaLaunchKernel",
    ],
)
def test_other_names_get_no_probe(symbol: str) -> None:
    assert choose_probe(symbol) is None


def test_probes_come_in_the_order_of_the_file() -> None:
    chosen = choose_probes(["cuInit", "cuDriverGetVersion", "cuCtxSynchronize"])
    assert chosen == [
        Probe("cuInit", "on_init"),
        Probe("cuCtxSynchronize", "on_sync_ctx", "on_sync_return"),
    ]


def test_every_program_that_can_be_named_is_in_the_source() -> None:
    assert set(exports.programs()) <= PROGRAMS


def test_every_uprobe_program_of_the_source_can_be_named() -> None:
    assert PROGRAMS - set(exports.programs()) == {"on_submit_first"}  # reached by tail call


@pytest.mark.parametrize(("name", "kind"), sorted(exports.programs().items()))
def test_a_program_is_on_one_side_of_a_call_only(name: str, kind: str) -> None:
    probes = [probe for symbol in [*SUBMITS, *COMPLETES, *LINKS] if (probe := choose_probe(symbol))]
    sides = {"entry"} if any(p.entry == name for p in probes) else set()
    sides |= {"return"} if any(p.on_return == name for p in probes) else set()
    assert sides <= {kind}
