# SPDX-License-Identifier: Apache-2.0
"""What ``fairsched tenant set`` changed: a layer over the file, kept by the daemon in state_dir.

The file stays the person's, the overrides the daemon's: neither rewrites the other, and
``tenant unset`` gives the file its say back. Applying overrides validates the whole result, so an
override can no more break the rules (sum of min, min over quota) than the file can.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairsched.base.files import replace_file
from fairsched.config.consistency import node_at
from fairsched.config.loader import InvalidConfig, Problem, from_document, read_file
from fairsched.config.models import Config, walk
from fairsched.config.yamlfile import Document, parse
from fairsched.errors import ConfigError
from fairsched.model import ADJUSTABLE

VERSION = 1
_HEADER = "# Written by fairsched (`fairsched tenant set`); undo with `fairsched tenant unset`.\n"


@dataclass(frozen=True)
class Overrides:
    """Values by tenant path (``chat``, ``team/chat``) and key."""

    tenants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def with_set(self, tenant: str, values: Mapping[str, Any]) -> Overrides:
        """These overrides and `values` for `tenant`, which win over earlier ones."""
        return Overrides({**self.tenants, tenant: {**self.tenants.get(tenant, {}), **values}})

    def with_unset(self, tenant: str, keys: Iterable[str] = ()) -> Overrides:
        """These overrides without `keys` of `tenant`; without all of them when no key is named."""
        dropped = set(keys)
        kept = {
            key: value
            for key, value in self.tenants.get(tenant, {}).items()
            if dropped and key not in dropped
        }
        others = {name: values for name, values in self.tenants.items() if name != tenant}
        return Overrides({**others, tenant: kept} if kept else others)

    def stale(self, config: Config) -> tuple[str, ...]:
        """Tenants that are overridden, but no longer in the file. They have no effect."""
        return tuple(name for name in self.tenants if node_at(config.tenants, name) is None)

    def apply(self, config: Config) -> Config:
        """`config` as the overrides change it. Raises ConfigError when the result is not valid."""
        stale = self.stale(config)
        live = {name: values for name, values in self.tenants.items() if name not in stale}
        if not live:
            return config
        data = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
        for name, values in live.items():
            first, *rest = name.split("/")
            node = data["tenants"][first]
            for part in rest:
                node = node["children"][part]
            node.update(values)
        return from_document(Document(data), "overrides")


def check_set(tenant: str, values: Mapping[str, Any], config: Config) -> None:
    """Raise ConfigError unless `values` may be set for `tenant`, as far as the names go."""
    if node_at(config.tenants, tenant) is None:
        known = ", ".join(path for path, _ in walk(config.tenants)) or "none"
        raise ConfigError(f"no tenant '{tenant}' in the configuration", remedy=f"name one of: {known}")
    if not values:
        raise ConfigError(f"nothing to set for '{tenant}'", remedy="give a value, such as --weight 2")
    for key in values:
        if key not in ADJUSTABLE:
            raise ConfigError(
                "cannot be changed at run time",
                key=f"tenants.{tenant}.{key}",
                remedy=f"edit the file and reload; at run time: {', '.join(ADJUSTABLE)}",
            )


def check_values(values: Mapping[str, Any]) -> None:
    """Raise ConfigError where a tenant cannot have them, whichever it is."""
    from_document(Document({"tenants": {"any": {"cgroup": "/any", **values}}}), "overrides")


def load_overrides(path: Path) -> Overrides:
    """Read the overrides; no file is no overrides.

    Raises ConfigError when the file is damaged: the caller decides whether to go on without it
    (the daemon does, and says so: an unreadable override must not stop the node).
    """
    if not path.exists():
        return Overrides()
    document = parse(read_file(path), str(path))
    data = document.data
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise _damaged(path, f"it has no 'version: {VERSION}'")
    tenants = data.get("tenants") or {}
    if not isinstance(tenants, dict):
        raise _damaged(path, "'tenants' is not a mapping")
    for name, values in tenants.items():
        if not isinstance(values, dict) or not set(values) <= set(ADJUSTABLE):
            line = document.line_of(("tenants", name))
            raise InvalidConfig(
                str(path),
                [
                    Problem(
                        f"tenants.{name}", line, f"may only hold {', '.join(ADJUSTABLE)}", "remove the rest"
                    )
                ],
            )
    return Overrides(tenants)


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(what, file=str(path), remedy="delete the file to go back to the configuration")


def save_overrides(path: Path, overrides: Overrides) -> None:
    """Write the overrides so that a crash leaves the old file or the new one, never a part.

    Raises OSError when the directory cannot be written.
    """
    text = _HEADER + f"version: {VERSION}\ntenants:" + ("" if overrides.tenants else " {}") + "\n"
    for name, values in sorted(overrides.tenants.items()):
        # JSON is YAML, and quotes whatever needs quotes
        text += f"  {json.dumps(name)}: {json.dumps(dict(values))}\n"
    replace_file(path, text.encode())
