# SPDX-License-Identifier: Apache-2.0
"""Reads the file of node pools. Errors: errors.ConfigError with file, line, key and remedy, every problem of it."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from fairsched.config.loader import InvalidConfig, Problem, problem_of, read_file
from fairsched.config.yamlfile import dotted, parse
from fairsched.errors import ConfigError
from fairsched.k8s.pools import schema
from fairsched.k8s.pools.schema import MANUAL, Pools


def load(path: Path) -> Pools:
    """Read and validate the file at `path`. Raises ConfigError."""
    return from_bytes(read_file(path, "docs/kubernetes-pools.md"), str(path))


def from_bytes(raw: bytes, file: str) -> Pools:
    """Validate the text of a file; `file` is only named in errors."""
    document = parse(raw, file)
    if not isinstance(document.data, dict):
        raise ConfigError(
            "it is no mapping of keys to values", file=file, remedy=f"start with 'pools:', see {MANUAL}"
        )
    try:
        pools = Pools.model_validate(document.data)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise InvalidConfig(
            file, [problem_of(one, document, schema.known_keys, MANUAL) for one in found]
        ) from None
    wrong = [
        Problem(dotted(key), document.line_of(key), message, remedy)
        for key, message, remedy in schema.problems(pools)
    ]
    if wrong:
        raise InvalidConfig(file, wrong)
    return pools
