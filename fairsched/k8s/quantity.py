# SPDX-License-Identifier: Apache-2.0
"""Quantities as the Kubernetes API writes them (pure): ``75``, ``7500m``, ``80Gi``, ``1e3``.

The API server writes some of them in another way than they were given (1024Mi is 1Gi): they are compared as numbers.
Source: the grammar in the reference of apimachinery's resource.Quantity.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

MOST_CHARS = 64
_FORM = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:([eE][+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse(text: object) -> Fraction:
    """The number; exact. Raises ValueError."""
    written = str(text)
    found = _FORM.fullmatch(written) if len(written) <= MOST_CHARS else None
    if found is None:
        raise ValueError(f"{written[:MOST_CHARS]!r} is not a quantity such as 75, 500m or 8Gi")
    number, exponent, suffix = Fraction(found[1].removesuffix(".")), found[2], found[3] or ""
    if exponent:
        return number * Fraction(10) ** int(exponent[1:])
    if suffix in _BINARY:
        return number * (1 << _BINARY[suffix])
    return number * Fraction(10) ** _DECIMAL[suffix]


def quantity(text: object) -> Fraction | None:
    """The number; None: it is no quantity."""
    try:
        return parse(text)
    except ValueError:
        return None


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


def thousandths(value: Fraction) -> str:
    """The quantity, cut to thousandths: ``75``, ``33333m``."""
    cut = int(value * 1000)
    return f"{cut}m" if cut % 1000 else str(cut // 1000)
