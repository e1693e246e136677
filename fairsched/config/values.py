# SPDX-License-Identifier: Apache-2.0
"""Kinds of values that several sections of the configuration have."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{0,20})?)"
"""As long as any that is taken; some are written by who may make a pod, and may have a million digits."""
_SIZE = re.compile(_NUMBER + r"\s*([KMGT]i?)?B?")
_SIZES = {"": 1, **{f"{unit}i": 1024 ** (n + 1) for n, unit in enumerate("KMGT")}}
_SIZES |= {unit: 1000 ** (n + 1) for n, unit in enumerate("KMGT")}
_DURATION = re.compile(_NUMBER + r"\s*(s|min|m|h|d|w)")
_DURATIONS_S = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PERCENT = re.compile(_NUMBER + r"\s*%")


def ratio(value: Any) -> Any:
    """A percentage as the number it means; anything else unchanged."""
    if isinstance(value, str) and (percent := _PERCENT.fullmatch(value)):
        return float(percent.group(1)) / 100
    return value


def size(value: Any) -> Any:
    """``8GiB`` as a number of bytes; anything else unchanged."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value[:40]!r} is not a size: a number of bytes, or one with MiB, GiB, MB, GB")
        return round(float(match.group(1)) * _SIZES[match.group(2) or ""])
    return value


def seconds(value: Any) -> Any:
    """``10s`` or ``5m`` as a number of seconds; anything else unchanged."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError(
                f"{value[:40]!r} is not a duration: write 90s, 15m, 1h, 7d, or a number of seconds"
            )
        return float(match.group(1)) * _DURATIONS_S[match.group(2)]
    return value


def listed(value: Any) -> Any:
    """A list of YAML as the tuple that a frozen section keeps; anything else unchanged."""
    return tuple(value) if isinstance(value, list) else value


GpuParts = dict[
    Annotated[str, Field(min_length=1, max_length=96)],
    Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)],
]
Ratio = Annotated[
    float,
    BeforeValidator(ratio),
    Field(ge=0, le=1, allow_inf_nan=False),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "pattern": "%$"}]}
    ),
]
Size = Annotated[
    int,
    BeforeValidator(size),
    Field(ge=1, le=2**60),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": "^[0-9.]+ *([KMGT]i?)?B?$"},
            ]
        }
    ),
]
Duration = Annotated[
    float,
    BeforeValidator(seconds),
    Field(allow_inf_nan=False),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": "^[0-9.]+ *(s|min|m|h|d|w)$"},
            ]
        }
    ),
]
"""Seconds."""
