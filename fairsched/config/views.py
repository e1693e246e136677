# SPDX-License-Identifier: Apache-2.0
"""The effective configuration as flat settings, and what is made from them: YAML, diff, JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fairsched.config.consistency import key_of, node_at
from fairsched.config.models import Child, Config, Tenant, walk
from fairsched.config.overrides import Overrides
from fairsched.config.section import Section
from fairsched.config.yamlfile import KeyPath, dotted
from fairsched.model import ADJUSTABLE

Origin = Literal["default", "file", "tenant_defaults", "override"]

PLACES = ("state_dir", "run_dir", "control")
"""Where the daemon and its helpers find each other and what they wrote."""
_RESTART = (*PLACES, "gpu", "mechanisms")
"""Read once at start: a reload keeps the old value and says so."""
_AT_ONCE = ("mechanisms", "freezer")
"""But this one: who switches the freezer off wants everybody let go now."""

FILE_KEYS = ("gpus", "tokens_url", "tokens_metric", "token_cost_ms")
"""Of a tenant, that nothing but the file says: neither `tenant set` nor tenant_defaults."""

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*")
_YAML11_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that other YAML readers take for booleans; written in quotes for their sake."""


@dataclass(frozen=True)
class Setting:
    """One value in effect and where it comes from."""

    key: KeyPath
    value: Any
    """Plain data: None, bool, int, float, str, a list of str, or of `match` a mapping of names to such lists."""
    origin: Origin

    @property
    def name(self) -> str:
        return dotted(self.key)


@dataclass(frozen=True)
class Change:
    """One difference between two configurations; `str` is the line for the log."""

    key: str
    old: str | None
    new: str | None
    needs_restart: bool

    def __str__(self) -> str:
        if self.old is None:
            text = f"{self.key} added" + (f" {self.new}" if self.new else "")
        elif self.new is None:
            text = f"{self.key} removed"
        else:
            text = f"{self.key} {self.old} -> {self.new}"
        return text + (" (takes effect at the next start)" if self.needs_restart else "")


def list_settings(config: Config, overrides: Overrides | None = None) -> list[Setting]:
    """Every setting in effect when `overrides` lie over the file's `config`, in file order.

    Raises ConfigError when the overrides do not fit the configuration.
    """
    overrides = overrides or Overrides()
    effective = overrides.apply(config)
    found = list(_plain_settings(config, ()))
    for path, node in walk(effective.tenants):
        in_file = node_at(config.tenants, path)
        assert in_file is not None  # overrides change tenants, they never add one
        found += _tenant_settings(effective, path, node, in_file, overrides.tenants.get(path, {}))
    return found


def _plain_settings(section: Section, prefix: KeyPath) -> Iterator[Setting]:
    for field, info in type(section).model_fields.items():
        if field == "tenants":
            continue
        value = getattr(section, field)
        key: KeyPath = (*prefix, info.alias or field)
        if isinstance(value, Section):
            yield from _plain_settings(value, key)
        else:
            yield Setting(key, _plain(value), "file" if field in section.model_fields_set else "default")


def _tenant_settings(
    config: Config, path: str, node: Tenant | Child, in_file: Tenant | Child, override: Mapping[str, Any]
) -> Iterator[Setting]:
    key = key_of(path)
    if isinstance(node, Tenant):
        origin: Origin = "file" if node.cgroup is not None else "default"
        yield Setting((*key, "cgroup"), list(config.cgroup_patterns(path)) or None, origin)
        match = None if node.match is None else node.match.plain()
        yield Setting((*key, "match"), match, "default" if match is None else "file")
        if node.children_are != "cgroups":
            yield Setting((*key, "children_are"), node.children_are, "file")
    elif node.pods is not None:
        yield Setting((*key, "pods"), list(node.pods), "file")
    if node.gpu_parts is not None:
        yield Setting((*key, "gpu_parts"), dict(node.gpu_parts), "file")
    spec = config.spec(path, node)
    effective = {
        "weight": spec.weight,
        "class": spec.tenant_class.value,
        "quota": spec.quota_ratio,
        "min": spec.min_ratio,
        "max_freeze_ms": spec.max_freeze_ms,
        "exempt": spec.is_exempt,
        "on_misbehaviour": spec.on_misbehaviour.value,
        "vram_limit": spec.vram_limit_bytes,
        "on_vram_limit": spec.on_vram_limit.value,
    }
    for name in ADJUSTABLE:
        field = "tenant_class" if name == "class" else name
        if name in override:
            origin = "override"
        elif getattr(in_file, field) is not None:
            origin = "file"
        elif field in config.tenant_defaults.model_fields_set and not (
            "/" in path and name in ("weight", "quota", "min", "vram_limit")
        ):
            origin = "tenant_defaults"
        else:
            origin = "default"
        yield Setting((*key, name), effective[name], origin)
    for name in FILE_KEYS:
        default = type(in_file).model_fields[name].default
        origin = "default" if getattr(in_file, name) == default else "file"
        yield Setting((*key, name), _plain(getattr(node, name)), origin)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Section):  # of a mapping: what stands in the file
        known = type(value).model_fields
        return {
            known[name].alias or name: _plain(getattr(value, name)) for name in sorted(value.model_fields_set)
        }
    return str(value) if isinstance(value, Path) else value


def diff(old: Config, new: Config) -> list[Change]:
    """What a reload from `old` to `new` changes, in the order of the file."""
    before = {setting.key: setting.value for setting in list_settings(old)}
    after = {setting.key: setting.value for setting in list_settings(new)}
    gone = {path for path, _ in walk(old.tenants)} - {path for path, _ in walk(new.tenants)}
    born = {path for path, _ in walk(new.tenants)} - {path for path, _ in walk(old.tenants)}
    changes = [Change(dotted(key_of(path)), "", None, False) for path in sorted(gone)]
    changes += [
        Change(dotted(key_of(path)), None, f"weight {_scalar(new_spec.weight)}", False)
        for path, node in walk(new.tenants)
        if path in born
        for new_spec in [new.spec(path, node)]
    ]
    for key, value in after.items():
        if key in before and before[key] != value:
            needs_restart = key[0] in _RESTART and key != _AT_ONCE
            changes.append(Change(dotted(key), _scalar(before[key]), _scalar(value), needs_restart))
    return changes


def keep_started(fresh: Config, running: Config, sections: tuple[str, ...] = _RESTART) -> Config:
    """`fresh`, but what takes effect at the next start only is as in `running`.

    The whole is not validated again: of two values that fit only together one may be kept.
    """
    kept = {name: getattr(running, name) for name in sections}
    if "mechanisms" in kept:
        kept["mechanisms"] = kept["mechanisms"].model_copy(update={"freezer": fresh.mechanisms.freezer})
    config = fresh.model_copy(update=kept)
    config.model_fields_set.difference_update(set(sections) - running.model_fields_set)
    return config


def render(config: Config, overrides: Overrides | None = None) -> str:
    """The whole effective configuration as YAML that `load` accepts; a comment marks every value
    that does not stand in the file."""
    lines: list[str] = []
    opened: KeyPath = ()
    for setting in list_settings(config, overrides):
        *section, name = setting.key
        shared = 0
        while shared < min(len(section), len(opened)) and section[shared] == opened[shared]:
            shared += 1
        for depth in range(shared, len(section)):
            lines.append(f"{'  ' * depth}{_scalar(section[depth])}:")
        opened = tuple(section)
        line = f"{'  ' * len(section)}{_scalar(name)}: {_scalar(setting.value)}"
        lines.append(line if setting.origin == "file" else f"{line}  # {setting.origin}")
    if not config.tenants:
        lines.append("tenants: {}")
    return "\n".join(lines) + "\n"


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _YAML11_WORDS
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(name)}: {_scalar(item)}" for name, item in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:.12g}"
    return json.dumps(value)


def schema() -> dict[str, Any]:
    """JSON schema of the file, for editors and CI."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "fairsched configuration",
        **{key: value for key, value in Config.model_json_schema(by_alias=True).items() if key != "title"},
    }
