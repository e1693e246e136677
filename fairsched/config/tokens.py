# SPDX-License-Identifier: Apache-2.0
"""The values of the keys that say where a tenant's own token counters are.

Only this file names addresses that fairsched asks: root writes it, ``fairsched tenant set`` cannot change these keys,
and what a page answers (a redirect, say) leads nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

MAX_URLS = 16
"""Of one tenant."""
MAX_ALL_URLS = 256
"""Each has a thread of its own in the companion."""
MAX_URL_CHARACTERS = 2048
AUTO = "auto"

_PRINTABLE = re.compile(r"[!-~]+")
_SELECTOR = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?P<labels>.*)\})?")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"([^"\\]*)"\s*')
_MAX_SELECTOR_CHARACTERS = 512


@dataclass(frozen=True)
class Selector:
    """Series of one metric: those that carry all of these labels."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


def parse_selector(text: str) -> Selector:
    """``name`` or ``name{label="value",...}``. Raises ValueError."""
    found = _SELECTOR.fullmatch(text.strip()) if len(text) <= _MAX_SELECTOR_CHARACTERS else None
    if found is None:
        raise ValueError(f'{text[:60]!r} is not a metric: write auto, a name, or name{{label="value"}}')
    labels, rest = [], found["labels"] or ""
    while rest.strip():
        label = _LABEL.match(rest)
        after = rest[label.end() :] if label is not None else ""
        if label is None or (after and not after.startswith(",")):
            raise ValueError(f'{rest[:40]!r} is not a list of labels: write label="value",other="value"')
        labels.append((label[1], label[2]))
        rest = after[1:]
    return Selector(found["name"], tuple(labels))


def _metric(value: str) -> str:
    if value != AUTO:
        parse_selector(value)
    return value


def _urls(value: Any) -> Any:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise ValueError("an address is needed, or a list of them: http://127.0.0.1:8000/metrics")
    urls = tuple(_url(item) for item in value)
    if len(set(urls)) != len(urls):
        raise ValueError("the same address stands there twice: its tokens would count twice")
    return urls


def _url(value: Any) -> str:
    """The address, checked. Raises ValueError that does not repeat a password."""
    if not isinstance(value, str) or not _PRINTABLE.fullmatch(value) or len(value) > MAX_URL_CHARACTERS:
        raise ValueError("an address is printable ASCII without spaces: http://127.0.0.1:8000/metrics")
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("the address has no valid host and port: http://127.0.0.1:8000/metrics") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("an address begins with http:// or https://")
    if not host or port == 0:
        raise ValueError("the address names no host and port: http://127.0.0.1:8000/metrics")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "no user and password in an address: whoever may ask for the status could read them. "
            "Let the page be read without, from this machine"
        )
    if parts.fragment:
        raise ValueError("an address of a page has no '#'")
    return value


TokenUrls = Annotated[
    tuple[str, ...],
    BeforeValidator(_urls),
    Field(max_length=MAX_URLS),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
PageUrl = Annotated[str, BeforeValidator(_url)]
TokenMetric = Annotated[str, AfterValidator(_metric)]
