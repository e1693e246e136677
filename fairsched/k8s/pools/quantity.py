# SPDX-License-Identifier: Apache-2.0
"""Quantities of Kubernetes as numbers (pure): ``500m``, ``8``, ``64Gi``, ``1e3``.

The API server writes some of them in another way than they were given (1024Mi is 1Gi): they are compared as numbers.
Source: the grammar in the reference of apimachinery's resource.Quantity.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))"
    r"(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]{1,2})?"
)
_BINARY: dict[str, int] = {
    unit: 1024 ** (power + 1) for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def quantity(text: str) -> Fraction | None:
    """Its value; None: it is no quantity."""
    found = _QUANTITY.fullmatch(text)
    if found is None:
        return None
    number, unit = Fraction(found.group(1).removesuffix(".")), found.group(2)
    if unit is None:
        return number
    if unit in _BINARY:
        return number * _BINARY[unit]
    power = _DECIMAL[unit] if unit in _DECIMAL else int(unit[1:])
    return number * (Fraction(int(10**power)) if power >= 0 else Fraction(1, 10**-power))


def comparable(value: Any) -> Any:
    """The same with each text that is a quantity as a number; what is equal is the same for the API server."""
    if isinstance(value, str):
        number = quantity(value)
        return value if number is None else number
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, list):
        return [comparable(one) for one in value]
    return value
