# SPDX-License-Identifier: Apache-2.0
"""The values of the device gate's keys: lists of GPUs, and where `devices.default` holds."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from fairsched.config import patterns

MAX_GPU_MINOR = 247
"""/dev/nvidia0 to /dev/nvidia247."""
MAX_UNDER = 64

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def _gpus(value: Any) -> Any:
    if value is None or value in ("all", "none"):
        return value
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{_shown(value)} is not a list of GPUs: write [0, 1], all or none")
    return tuple(_gpu(item) for item in value)


def _gpu(value: Any) -> int | str:
    if isinstance(value, str) and value.startswith("MIG-"):
        raise ValueError(
            f"{_shown(value)} is a MIG instance: the gate knows whole GPUs, name the GPU it is of"
        )
    if isinstance(value, str) and _UUID.fullmatch(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_GPU_MINOR:
        return value
    raise ValueError(
        f"{_shown(value)} is not a GPU: the number of its /dev/nvidiaN (0 to {MAX_GPU_MINOR}) "
        "or its UUID (GPU-..., see nvidia-smi -L)"
    )


def _under(value: Any) -> Any:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return value
    return tuple(_cgroup(item) if isinstance(item, str) else item for item in value)


def _cgroup(value: str) -> str:
    path = patterns.normalise(value)
    if not patterns.is_literal(path):
        raise ValueError(f"{_shown(value)}: a cgroup is meant here, without * and ?")
    return path


def _shown(value: Any) -> str:
    return repr(str(value)[:80])


_GPU_SCHEMA = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": MAX_GPU_MINOR}, {"type": "string"}]}
GpuWish = Annotated[
    Literal["all", "none"] | tuple[int | str, ...],
    BeforeValidator(_gpus),
    WithJsonSchema({"anyOf": [{"enum": ["all", "none"]}, {"type": "array", "items": _GPU_SCHEMA}]}),
]
Under = Annotated[
    tuple[str, ...],
    BeforeValidator(_under),
    Field(min_length=1, max_length=MAX_UNDER),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
