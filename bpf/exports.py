# SPDX-License-Identifier: Apache-2.0
"""Maps each export of libcuda to its BPF program (pure).

Problem: libcuda has some 600 exports in many spellings (``_v2``, ``_v3``, ``_ptsz``, ``_ptds``), new versions
appear with each release, and the CUDA runtime resolves whichever it was built for.

Approach: name the functions once, without suffix, and match every spelling found in ``.dynsym``. The
suffix decides only what stream 0 means: in ``_ptsz``/``_ptds`` spellings it is the per-thread default stream, which
the ``_pt`` programs know. Where a later version moved an argument, the version is named in the table.

Terms: *submit* hands work to the GPU, *complete* proves work finished when it returns success, *link* ties
events, streams and contexts together. Sources: the CUDA driver API reference for the argument positions.

Left out on purpose: synchronous ``cuMemset*`` and device-to-device ``cuMemcpy``. The runtime documents them
as possibly asynchronous to the host, so their return proves nothing. Nor is their entry taken for a submit: who makes
such a call need not ask afterwards, so the interval would stay open for as long as the process is idle
(docs/accounting.md, What cannot be seen).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_NAME = re.compile(r"^(?P<base>cu[A-Z][A-Za-z0-9]*?)(?:_v(?P<version>\d+))?(?P<pt>_ptsz|_ptds)?$")


@dataclass(frozen=True)
class Probe:
    """One export and the programs on its entry and return; None = no probe there."""

    symbol: str
    entry: str | None
    on_return: str | None = None


_SUBMIT = {
    "cuLaunchKernel": "on_submit_a9",
    "cuLaunchCooperativeKernel": "on_submit_a9",
    "cuLaunchKernelEx": "on_submit_cfg",
    "cuLaunchCooperativeKernelMultiDevice": "on_submit_multi",
    "cuLaunchGridAsync": "on_submit_a4",
    "cuGraphLaunch": "on_submit_graph",
    "cuMemsetD8Async": "on_submit_a4",
    "cuMemsetD16Async": "on_submit_a4",
    "cuMemsetD32Async": "on_submit_a4",
    "cuMemsetD2D8Async": "on_submit_a6",
    "cuMemsetD2D16Async": "on_submit_a6",
    "cuMemsetD2D32Async": "on_submit_a6",
    "cuLaunchHostFunc": "on_copy_a1",
    "cuStreamBatchMemOp": "on_copy_a1",
    "cuStreamWaitValue32": "on_copy_a1",
    "cuStreamWaitValue64": "on_copy_a1",
    "cuMemcpyAsync": "on_copy_a4",
    "cuMemcpyHtoDAsync": "on_copy_a4",
    "cuMemcpyDtoHAsync": "on_copy_a4",
    "cuMemcpyDtoDAsync": "on_copy_a4",
    "cuMemcpyHtoAAsync": "on_copy_a5",
    "cuMemcpyAtoHAsync": "on_copy_a5",
    "cuMemcpyPeerAsync": "on_copy_a6",
    "cuMemcpy2DAsync": "on_copy_a2",
    "cuMemcpy3DAsync": "on_copy_a2",
    "cuMemcpy3DPeerAsync": "on_copy_a2",
    "cuMemcpyBatchAsync": "on_copy_a9",
    "cuMemcpyBatchAsync_v2": "on_copy_a8",
    "cuMemcpy3DBatchAsync": "on_copy_a5",
    "cuMemcpy3DBatchAsync_v2": "on_copy_a4",
    "cuMemcpyWithAttributesAsync": "on_copy_a5",
    "cuMemcpy3DWithAttributesAsync": "on_copy_a3",
    "cuMemPrefetchAsync": "on_copy_a4",
    "cuMemPrefetchAsync_v2": "on_copy_a5",
    "cuMemPrefetchBatchAsync": "on_copy_a8",
    "cuMemDiscardBatchAsync": "on_copy_a5",
    "cuMemDiscardAndPrefetchBatchAsync": "on_copy_a8",
}

_SYNC_COPIES = (
    "cuMemcpy",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyHtoA",
    "cuMemcpyAtoH",
    "cuMemcpy2D",
    "cuMemcpy2DUnaligned",
    "cuMemcpy3D",
)

_COMPLETE = {
    "cuStreamSynchronize": "on_sync_stream",
    "cuStreamQuery": "on_sync_stream",
    "cuEventSynchronize": "on_sync_event",
    "cuEventQuery": "on_sync_event",
    "cuCtxSynchronize": "on_sync_ctx",
    "cuMemFree": "on_sync_ctx",
    **dict.fromkeys(_SYNC_COPIES, "on_sync_copy"),
}

_LINK = {
    "cuInit": ("on_init", None),
    "cuEventRecord": ("on_record", None),
    "cuEventRecordWithFlags": ("on_record", None),
    "cuStreamWaitEvent": ("on_wait", None),
    "cuStreamDestroy": ("on_stream_drop", None),
    "cuStreamCreate": ("on_stream_new", "on_return"),
    "cuStreamCreateWithPriority": ("on_stream_new", "on_return"),
    "cuCtxCreate": ("on_ctx_new_a3", "on_return"),
    "cuCtxCreate_v3": ("on_ctx_new_a5", "on_return"),
    "cuCtxCreate_v4": ("on_ctx_new_a4", "on_return"),
    "cuDevicePrimaryCtxRetain": ("on_ctx_new_a2", "on_retain_return"),
    "cuCtxSetCurrent": ("on_ctx_set", "on_return"),
    "cuCtxGetCurrent": ("on_ctx_get", "on_return"),
    "cuCtxPushCurrent": ("on_ctx_push", "on_return"),
    "cuCtxPopCurrent": ("on_ctx_pop", "on_return"),
    "cuCtxDestroy": ("on_ctx_drop", "on_drop_return"),
    "cuDevicePrimaryCtxReset": ("on_dev_reset", "on_drop_return"),
    "cuDeviceGetUuid": ("on_dev_uuid", "on_return"),
}

# Programs whose meaning depends on what stream 0 is; each has a twin with this suffix.
_PER_THREAD_TWINS = ("on_submit_", "on_copy_", "on_sync_stream", "on_sync_copy", "on_record", "on_wait")


def choose_probe(symbol: str) -> Probe | None:
    """The probe for one exported name, or None when the export says nothing about GPU time."""
    match = _NAME.match(symbol)
    if match is None:
        return None
    base, version = match["base"], match["version"]
    entry: str | None
    on_return: str | None = None
    for name in (f"{base}_v{version}", base) if version else (base,):
        if name in _SUBMIT:
            entry = _SUBMIT[name]
            break
        if name in _COMPLETE:
            entry, on_return = _COMPLETE[name], "on_sync_return"
            break
        if name in _LINK:
            entry, on_return = _LINK[name]
            break
    else:
        return None
    if match["pt"] and entry is not None and entry.startswith(_PER_THREAD_TWINS):
        entry += "_pt"
    return Probe(symbol, entry, on_return)


def choose_probes(symbols: Iterable[str]) -> list[Probe]:
    """Probes for all exports that need one, in the order given."""
    return [probe for probe in map(choose_probe, symbols) if probe is not None]


RAW_TRACEPOINTS = {"on_exit": ("sched_process_exit", "sched_process_exec")}
"""Programs that sit on no export: where they are attached."""


def programs() -> dict[str, str]:
    """Every program the table can name -> kind, ``entry`` or ``return``."""
    kinds: dict[str, str] = {}
    for entry in [*_SUBMIT.values(), *_COMPLETE.values(), *(e for e, _ in _LINK.values())]:
        kinds[entry] = "entry"
        if entry.startswith(_PER_THREAD_TWINS):
            kinds[entry + "_pt"] = "entry"
    for name in ["on_sync_return", *(r for _, r in _LINK.values() if r)]:
        kinds[name] = "return"
    return kinds
