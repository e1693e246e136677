# SPDX-License-Identifier: Apache-2.0
"""The keys that say where NVIDIA's DCGM is asked, and their values."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fairsched.config.section import Section
from fairsched.config.tokens import PageUrl

EMBEDDED = "embedded"

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})(?::(?P<port>[0-9]{1,5}))?")
_MAX_SOCKET_CHARACTERS = 107
"""Of a unix socket's path, in Linux."""
_MAX_PORT = 65535


def _address(value: str) -> str:
    if value == EMBEDDED:
        return value
    path = value.removeprefix("unix://")
    if path.startswith("/"):
        if len(path) <= _MAX_SOCKET_CHARACTERS and path.isprintable():
            return value
        raise ValueError(
            f"the path of a unix socket has at most {_MAX_SOCKET_CHARACTERS} printable characters"
        )
    found = _HOST.fullmatch(value)
    if found is None or not 1 <= int(found["port"] or 1) <= _MAX_PORT:
        raise ValueError(
            f"{value[:60]!r} is no address of a host engine: write HOST or HOST:PORT, the path of its unix socket, "
            f"or {EMBEDDED}"
        )
    return value


EngineAddress = Annotated[str, AfterValidator(_address)]


class DcgmKeys(Section):
    """How the load of whole GPUs is read, to which NVML's samples are scaled."""

    dcgm: Literal["off", "auto", "required"] = Field(
        default="auto",
        description="Scale NVML's samples to the time for which DCGM says a GPU was active; not asked while eBPF "
        "accounts, unless required.",
    )
    dcgm_address: EngineAddress | None = Field(
        default=None,
        description="Host engine: HOST or HOST:PORT, the path of its unix socket, or embedded (one in the daemon); "
        "null means 127.0.0.1:5555 where the system's own listens, else embedded if no dcgm_exporter is named.",
    )
    dcgm_exporter: PageUrl | None = Field(
        default=None,
        description="Metrics page of a dcgm-exporter, for nodes without a host engine to connect to, such as "
        "http://127.0.0.1:9400/metrics; asked where DCGM itself does not answer.",
    )
