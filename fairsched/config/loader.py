# SPDX-License-Identifier: Apache-2.0
"""From a file to a :class:`Config`, or to an error that says file, line, key and remedy."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fairsched.config import consistency
from fairsched.config.escalation import Escalation
from fairsched.config.guard import Guard, GuardLimit, GuardMaintenance, GuardProject
from fairsched.config.kubernetes import Kubernetes
from fairsched.config.match import Match
from fairsched.config.models import (
    Child,
    Config,
    Devices,
    Gpu,
    Log,
    Mechanisms,
    Misbehaviour,
    Tenant,
    TenantDefaults,
)
from fairsched.config.outward import Control, History, Metrics, Slis
from fairsched.config.reclaim import Reclaim, ReclaimRule
from fairsched.config.yamlfile import MAX_BYTES, Document, KeyPath, dotted, parse, too_large
from fairsched.errors import ConfigError

DEFAULT_PATH = Path("/etc/fairsched/config.yaml")

_SECTIONS: Mapping[str, type[Any]] = {
    "control": Control,
    "gpu": Gpu,
    "mechanisms": Mechanisms,
    "tenant_defaults": TenantDefaults,
    "devices": Devices,
    "misbehaviour": Misbehaviour,
    "metrics": Metrics,
    "history": History,
    "escalation": Escalation,
    "reclaim": Reclaim,
    "guard": Guard,
    "kubernetes": Kubernetes,
    "slis": Slis,
    "log": Log,
}

_NAMED: Mapping[tuple[str, str], type[Any]] = {
    ("reclaim", "rules"): ReclaimRule,
    ("guard", "limits"): GuardLimit,
    ("guard", "projects"): GuardProject,
    ("guard", "maintenance"): GuardMaintenance,
}
"""Sections whose own sections have names that a person gave."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a file."""

    key: str
    """Dotted path."""
    line: int | None
    """From 1; None when it is not in the file."""
    message: str
    remedy: str


class InvalidConfig(ConfigError):
    """A file that is YAML, but not a valid configuration. Keeps every problem, shows the first."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        first = problems[0]
        more = len(problems) - 1
        tail = f" (and {more} more)" if more else ""
        where = f"{file}:{first.line}" if first.line is not None else file
        super().__init__(first.message + tail, file=where, key=first.key, remedy=first.remedy)
        self.problems = tuple(problems)


def load(path: Path | None = None) -> Config:
    """Read and validate the configuration.

    None means the default path, and built-in defaults when there is no file at it. Raises
    ConfigError (exit status 2) for everything that can be wrong with the file.
    """
    if path is None:
        if not DEFAULT_PATH.exists():
            return Config()
        path = DEFAULT_PATH
    return from_bytes(read_file(path), str(path))


def read_file(path: Path, example: str = "packaging/config.example.yaml") -> bytes:
    """The bytes of `path`; ``example``: what one may start from.

    Raises ConfigError, never OSError; also for one that is too large, before reading it."""
    try:
        # O_NONBLOCK: a FIFO given by mistake must not hang a reload
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            raw = file.read(MAX_BYTES + 1) or b""
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"cannot be read: {reason}",
            file=str(path),
            remedy=f"check the path and its permissions, or start from {example}",
        ) from None
    if len(raw) > MAX_BYTES:
        raise too_large(size, str(path))
    return raw


def from_bytes(raw: bytes, file: str) -> Config:
    """Validate the text of a configuration; `file` is only named in errors."""
    document = parse(raw, file)
    if document.data is None:
        raise ConfigError(
            "the file is empty", file=file, remedy="write 'tenants: {}' to run with the defaults"
        )
    if not isinstance(document.data, dict):
        raise ConfigError(
            "the file is not a mapping of keys to values",
            file=file,
            remedy="start with a key, such as 'tenants:'",
        )
    return from_document(document, file)


def from_document(document: Document, file: str) -> Config:
    """Validate parsed data. Raises InvalidConfig with every problem found."""
    try:
        config = Config.model_validate(document.data)
    except ValidationError as error:
        found = [problem_of(details, document, known_keys) for details in error.errors(include_url=False)]
        raise InvalidConfig(file, found) from None
    contradictions = [
        Problem(dotted(key), document.line_of(key), message, remedy)
        for key, message, remedy in consistency.problems(config)
    ]
    if contradictions:
        raise InvalidConfig(file, contradictions)
    return config


def problem_of(
    details: ErrorDetails,
    document: Document,
    known_in: Callable[[KeyPath], list[str]],
    manual: str = "docs/configuration.md",
) -> Problem:
    """What pydantic found wrong in a document; ``known_in`` says the keys of a section, ``manual`` the page to read."""
    key: KeyPath = tuple(part for part in details["loc"] if part != "[key]")
    value = details.get("input")
    kind = details["type"]
    if kind == "extra_forbidden":
        known = known_in(key[:-1])
        close = difflib.get_close_matches(str(key[-1]), known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"remove it; known: {', '.join(known)}"
        return Problem(dotted(key), document.line_of(key), "unknown key", hint)
    message, remedy = _explain(kind, details.get("ctx") or {}, details["msg"], f"see {manual}")
    if not isinstance(value, (dict, list)) and kind != "value_error":
        message += f", not {_shown(value)}"
    return Problem(dotted(key), document.line_of(key), message, remedy)


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _explain(kind: str, context: Mapping[str, Any], fallback: str, see: str) -> tuple[str, str]:
    """What is wrong and the remedy, for a pydantic error type."""
    bound = context.get("le", context.get("lt", context.get("ge", context.get("gt"))))
    if kind in ("less_than_equal", "less_than"):
        return f"must be {bound:g} or less", "lower it"
    if kind == "greater_than_equal":
        return f"must be {bound:g} or more", "raise it"
    if kind == "greater_than":
        return f"must be more than {bound:g}", "raise it"
    if kind == "literal_error":
        expected = context.get("expected", "")
        return f"must be {expected}", "pick one of these words"
    if kind == "value_error":
        error = context.get("error", fallback)
        return str(error), getattr(error, "remedy", see)
    plain = {
        "int_type": ("must be a whole number", "write it without quotes and decimals"),
        "float_type": ("must be a number", "write a number, or for a ratio a percentage such as 30%"),
        "bool_type": ("must be true or false", "write true or false"),
        "string_type": ("must be a word", "quote it if it looks like a number"),
        "model_type": ("must be a mapping of keys to values", "indent its keys below it"),
        "dict_type": ("must be a mapping of names to settings", "indent the names below it"),
        "tuple_type": ("must be a list", "write [one, two]"),
        "finite_number": ("must be a finite number", "write a number"),
    }
    message = fallback[:1].lower() + fallback[1:]
    return plain.get(kind, (message, see))


def known_keys(section: KeyPath) -> list[str]:
    """Keys the schema allows in the section at `section` (empty = top level)."""
    if not section:
        model: type[Any] = Config
    elif section[0] == "tenants":
        model = Child if "children" in section else Match if section[2:] == ("match",) else Tenant
    else:
        model = _SECTIONS.get(str(section[0]), Config)
        for part in section[1:]:
            below = model.model_fields.get(str(part))
            if below is not None and hasattr(below.annotation, "model_fields"):
                model = cast("type[Any]", below.annotation)
        model = _NAMED.get((str(section[0]), str(section[1])), model) if len(section) > 2 else model
    return [field.alias or name for name, field in model.model_fields.items()]
