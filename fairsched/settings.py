# SPDX-License-Identifier: Apache-2.0
"""The configuration in force: the file, the overrides of ``tenant set``, and how they change while we run.

A change is validated whole before anything is touched; one that is wrong leaves everything as it was and
``error`` says what is wrong until the next good one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairsched.config import (
    DEFAULT_PATH,
    PLACES,
    Overrides,
    check_set,
    diff,
    keep_started,
    load,
    load_overrides,
    render,
    save_overrides,
    settings,
)
from fairsched.errors import ConfigError, FairschedError

logger = logging.getLogger(__name__)


class Settings:
    """File + overrides = ``config``.

    What takes effect at the next start only stays in ``config`` as it was at this one: a guardian that watches the new
    run_dir would not see the holds in the old one. ``file_config`` is as the file says but for the places.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError when the file is wrong. Damaged overrides are logged and left out."""
        self.path = path
        self.error: str | None = None
        self.file_config = load(path)
        self.overrides = Overrides()
        try:
            self.overrides = load_overrides(self.file_config.overrides_path)
            self.config = self.overrides.apply(self.file_config)
        except ConfigError as error:
            logger.error("overrides=ignored error=%r remedy=%r", str(error), error.remedy)
            self.overrides = Overrides()
            self.config = self.file_config

    @property
    def display_path(self) -> str | None:
        """The file in force; None = built-in defaults."""
        if self.path is not None:
            return str(self.path)
        return str(DEFAULT_PATH) if DEFAULT_PATH.exists() else None

    def reload(self) -> list[str]:
        """Read the file again; returns the changes as lines. Raises ConfigError and changes nothing."""
        try:
            fresh = load(self.path)
            config = self.overrides.apply(fresh)
        except ConfigError as error:
            self.error = str(error)
            raise
        self.error = None
        lines = [str(change) for change in diff(self.config, config)]
        self.file_config = keep_started(fresh, self.config, PLACES)
        self.config = keep_started(config, self.config)
        return lines

    def tenant_list(self) -> Mapping[str, Any]:
        """Every setting of every tenant and where it comes from; overrides of tenants that are no more."""
        rows = [item for item in settings(self.file_config, self.overrides) if item.key[0] == "tenants"]
        return {"settings": rows, "stale": list(self.overrides.stale(self.file_config))}

    def show(self) -> Mapping[str, Any]:
        """The whole configuration in force, as YAML."""
        return {"path": self.display_path, "yaml": render(self.file_config, self.overrides)}

    def set_tenant(self, tenant: str, values: Mapping[str, Any]) -> list[str]:
        """Override values of a tenant, persist, return the changes as lines. Raises ConfigError."""
        check_set(tenant, values, self.file_config)
        return self._override(self.overrides.with_set(tenant, values))

    def unset_tenant(self, tenant: str, keys: Sequence[str]) -> list[str]:
        """Give the file its say back. Raises ConfigError."""
        return self._override(self.overrides.with_unset(tenant, keys))

    def _override(self, overrides: Overrides) -> list[str]:
        config = keep_started(overrides.apply(self.file_config), self.config)
        lines = [str(change) for change in diff(self.config, config)]
        path = self.file_config.overrides_path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_overrides(path, overrides)
        except OSError as error:
            raise FairschedError(
                f"{path}: cannot be written: {error.strerror}; nothing was changed",
                remedy="make state_dir writable for the daemon",
            ) from error
        self.overrides, self.config = overrides, config
        return lines
