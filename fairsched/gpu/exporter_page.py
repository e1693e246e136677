# SPDX-License-Identifier: Apache-2.0
"""Reads the load of the GPUs from the metrics page of a dcgm-exporter.

Problem. On many nodes DCGM runs only inside dcgm-exporter, which lets nobody else in but has a page.

Approach. Ask for the page every few seconds, bounded in time and bytes, without proxies or redirects. Take
DCGM_FI_PROF_GR_ENGINE_ACTIVE, else DCGM_FI_DEV_GPU_UTIL, of whole GPUs; of MIG instances, whose rows have their GPU's
UUID and a GPU_I_ID (NVML's number of the GPU instance), the first only. A row has no time of its own: it is as old as
the exporter's own period (30 s unless it is told otherwise), and what it means is the load over that.

Errors: LoadError in our words, never what the page said.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from fairsched.gpu.loads import DeviceLoad, LoadError

PERIOD_S = 5.0
TIMEOUT_S = 2.0
"""For the whole page, and for each wait within it."""
MAX_BYTES = 4 * 1024 * 1024
_PIECE_BYTES = 64 * 1024
_ACTIVE = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO")
"""The same field; DCGM 4.6 has new names."""
_UTILISATION = ("DCGM_FI_DEV_GPU_UTIL",)
_SM_ACTIVE = ("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: Any) -> NoReturn:
        raise LoadError("it redirects, which is not followed: name the page itself")


class ExporterPage:
    """The page at ``url``."""

    name = "dcgm-exporter"
    period_s = PERIOD_S

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    @property
    def where(self) -> str:
        """What is read; what comes after a '?' may be nobody's business."""
        return f"page {self._url.partition('?')[0][:100]}"

    def read(self) -> Mapping[str, DeviceLoad]:
        """Loads by GPU UUID, and by name of the GPU instance. Raises LoadError."""
        text = self._fetch()
        try:
            found = parse(text, time.monotonic())
        except ValueError:
            raise LoadError("it is not a page of metrics") from None
        if not found:
            raise LoadError(
                f"it has no {_ACTIVE[0]} of a whole GPU: add the field to the exporter's list of counters"
            )
        return found

    def close(self) -> None:
        """Nothing is held between two readings."""

    def _fetch(self) -> str:
        end_s = time.monotonic() + TIMEOUT_S
        pieces: list[bytes] = []
        size = 0
        try:
            with self._opener.open(self._url, timeout=TIMEOUT_S) as response:
                while piece := response.read1(_PIECE_BYTES):
                    size += len(piece)
                    pieces.append(piece)
                    if size > MAX_BYTES:
                        raise LoadError(f"it has more than {MAX_BYTES >> 20} MiB")
                    if time.monotonic() > end_s:
                        raise LoadError(f"not whole within {TIMEOUT_S:g} s")
        except urllib.error.HTTPError as error:
            error.close()
            raise LoadError(f"it answers {error.code}") from None
        except urllib.error.URLError as error:
            raise LoadError(f"no answer: {getattr(error.reason, 'strerror', None) or 'timeout'}") from None
        except (OSError, http.client.HTTPException) as error:
            raise LoadError(f"no answer: {type(error).__name__}") from None
        return b"".join(pieces).decode("utf-8", "replace")


def parse(text: str, now_s: float) -> dict[str, DeviceLoad]:
    """Loads by GPU UUID and by name of the GPU instance (pure). Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families

    rows = [
        (sample.name, f"{uuid}/{part}" if part else uuid, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if (uuid := sample.labels.get("UUID") or sample.labels.get("uuid"))
        and ((part := sample.labels.get("GPU_I_ID", "")) == "" or sample.name not in _UTILISATION)
    ]
    active, sms = _named(rows, _ACTIVE, 1), _named(rows, _SM_ACTIVE, 1)
    used = _named(rows, _UTILISATION, 100)
    found = {uuid: DeviceLoad(percent / 100, now_s, "GPU_UTIL") for uuid, percent in used.items()}
    found.update(
        (uuid, DeviceLoad(ratio, now_s, "GR_ENGINE_ACTIVE", sms.get(uuid))) for uuid, ratio in active.items()
    )
    return found


def _named(rows: Iterable[tuple[str, str, float]], names: tuple[str, ...], most: float) -> dict[str, float]:
    """By UUID. A number beyond ``most`` stands for the lack of one."""
    return {uuid: value for name, uuid, value in rows if name in names and 0 <= value <= most}
