# SPDX-License-Identifier: Apache-2.0
"""YAML text to plain data, strictly, remembering the line of every key.

Problem: the usual loader is too kind for a file that decides who is paused. It takes the last of
two equal keys in silence, reads ``off`` as false and ``12:30`` as 750, expands aliases without a
bound, and forgets line numbers.

Approach: walk the parser's event stream (libyaml's where PyYAML has it) with an explicit stack.
Scalars follow the YAML 1.2 core schema, so ``off`` and ``no`` are words. Anchors, tags, a second
document, duplicate keys and deep nesting are errors, and nothing is built before it is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from fairsched.errors import ConfigError

MAX_BYTES = 1_000_000
MAX_DEPTH = 16
MAX_NUMBER_CHARS = 64
"""Python refuses integers of more than 4300 digits; no number in a config needs a tenth of this."""

KeyPath = tuple[str | int, ...]

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Document:
    """The data of one file and where each key stands in it."""

    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """Line (from 1) of each key path, list items by index."""

    def line_of(self, key: KeyPath) -> int | None:
        """Line of the longest part of `key` that is in the file; None when none of it is."""
        for length in range(len(key), 0, -1):
            line = self.lines.get(key[:length])
            if line is not None:
                return line
        return None


def dotted(key: KeyPath) -> str:
    """``('tenants', 'chat', 'cgroup', 0)`` as ``tenants.chat.cgroup[0]``."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def parse(raw: bytes, file: str) -> Document:
    """Parse one YAML document.

    Raises ConfigError, and nothing else, for whatever is not a single plain document.
    """
    if len(raw) > MAX_BYTES:
        raise too_large(len(raw), file)
    return _Builder(file).build(_decode(raw, file))


def too_large(size: int, file: str) -> ConfigError:
    """The error for a file of ``size`` bytes; of what has no size (a device) not more is known than that."""
    found = f"{size} bytes, more" if size > MAX_BYTES else "more bytes"
    return ConfigError(
        f"the file has {found} than the {MAX_BYTES} allowed",
        file=file,
        remedy="check that this is a fairsched configuration; shorten lists with cgroup patterns",
    )


def _decode(raw: bytes, file: str) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"byte {error.start} is not UTF-8", file=f"{file}:{line}", remedy="save the file as UTF-8"
        ) from None
    for number, line_text in enumerate(text.split("\n"), start=1):
        if "\t" in line_text[: len(line_text) - len(line_text.lstrip())]:
            raise ConfigError(
                "a tab is used for indentation", file=f"{file}:{number}", remedy="indent with spaces"
            )
    return text


@dataclass
class _Open:
    """A mapping or list whose end has not been seen yet."""

    key: KeyPath
    value: dict[str, Any] | list[Any]
    pending: str | None = None
    """Mapping only: the key that waits for its value."""


class _Builder:
    def __init__(self, file: str) -> None:
        self._file = file
        self._stack: list[_Open] = []
        self._lines: dict[KeyPath, int] = {}
        self._documents = 0
        self._root: Any = None

    def build(self, text: str) -> Document:
        for event in self._events(text):
            self._take(event)
        return Document(self._root, self._lines)

    def _events(self, text: str) -> Iterator[Any]:
        try:
            yield from yaml.parse(text, Loader=_PARSER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            what = error.problem or error.context or "not valid YAML"
            raise self._error(what, mark, "fix the YAML syntax near this line") from None
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            what = str(error).splitlines()[0] if str(error) else "not valid YAML"
            raise self._error(what, None, "remove control characters and fix the syntax") from None

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise self._error("a second document starts", event.start_mark, "keep one document a file")
        elif isinstance(event, yaml.AliasEvent):
            raise self._error(f"alias *{event.anchor}", event.start_mark, "write the value out")
        elif isinstance(event, yaml.NodeEvent):
            if event.anchor is not None:
                raise self._error(f"anchor &{event.anchor}", event.start_mark, "remove it")
            self._take_node(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._stack.pop()

    def _take_node(self, event: Any) -> None:
        is_scalar = isinstance(event, yaml.ScalarEvent)
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.value, dict) and top.pending is None:
            if not is_scalar:
                raise self._error("a key must be a word", event.start_mark, "quote it if it is one")
            self._take_key(top, event)
            return
        if event.tag is not None and event.tag != "!":
            raise self._error(f"tag {event.tag}", event.start_mark, "remove it")
        if is_scalar:
            self._place(self._scalar(event), event)
            return
        if len(self._stack) >= MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} levels", event.start_mark, "flatten it")
        value: dict[str, Any] | list[Any] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self._stack.append(_Open(self._place(value, event), value))

    def _take_key(self, top: _Open, event: Any) -> None:
        name: str = event.value
        key = (*top.key, name)
        assert isinstance(top.value, dict)
        if name in top.value:
            first = self._lines[key]
            raise self._error(
                f"the key is given twice, first in line {first}",
                event.start_mark,
                "keep one of the two",
                key=dotted(key),
            )
        top.value[name] = None  # its place is taken now, so that the next equal key is seen
        top.pending = name
        self._lines[key] = event.start_mark.line + 1

    def _place(self, value: Any, event: Any) -> KeyPath:
        """Put a finished scalar or a fresh container where it belongs; return its key path."""
        if not self._stack:
            self._root = value
            return ()
        top = self._stack[-1]
        if isinstance(top.value, dict):
            assert top.pending is not None
            key: KeyPath = (*top.key, top.pending)
            top.value[top.pending] = value
            top.pending = None
        else:
            key = (*top.key, len(top.value))
            top.value.append(value)
            self._lines[key] = event.start_mark.line + 1
        return key

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0]:  # quoted: always a string
            return text
        if _NULL.fullmatch(text):
            return None
        if _TRUE.fullmatch(text):
            return True
        if _FALSE.fullmatch(text):
            return False
        if _FLOAT.fullmatch(text):
            if len(text) > MAX_NUMBER_CHARS:
                raise self._error("a number of absurd length", event.start_mark, "shorten it")
            return int(text) if _INT.fullmatch(text) else float(text)
        return text

    def _error(self, what: str, mark: Any, remedy: str, key: str = "") -> ConfigError:
        where = self._file if mark is None else f"{self._file}:{mark.line + 1}"
        return ConfigError(what, file=where, key=key, remedy=remedy)
