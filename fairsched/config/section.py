# SPDX-License-Identifier: Apache-2.0
"""What every section of the configuration has in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator


def _path(value: Any) -> Any:
    if isinstance(value, str):
        if "\0" in value or not value.startswith("/"):
            raise ValueError("an absolute path is needed")
        return Path(value)
    return value


AbsolutePath = Annotated[Path, BeforeValidator(_path), WithJsonSchema({"type": "string", "pattern": "^/"})]


class Section(BaseModel):
    """Unknown keys are errors, values are not bent into shape, and nothing changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_section_is_all_defaults(cls, data: Any) -> Any:
        # "tenants:\n  chat:" is null in YAML and plainly means: chat, with the defaults.
        return {} if data is None else data
