# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md, written from the schema: ``python -m fairsched.config.reference``."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic.fields import FieldInfo

from fairsched.config.gpus import GpuWish, Under
from fairsched.config.match import NameGlobs, PodGlobs, UnitGlobs
from fairsched.config.models import (
    Child,
    Config,
    Patterns,
    Tenant,
    Weight,
)
from fairsched.config.runtimes import by_name
from fairsched.config.section import Section
from fairsched.config.tokens import _urls
from fairsched.config.values import Ratio, ratio, seconds
from fairsched.config.views import _scalar

_INTRO = """\
# Configuration

<!-- Written by `python -m fairsched.config.reference`; a test compares it with the schema. -->

One YAML file, `/etc/fairsched/config.yaml` unless `--config` or `FAIRSCHED_CONFIG` says otherwise.
Without a file there is a daemon without tenants: it accounts and holds nobody. An example with
comments is `packaging/config.example.yaml`; `fairsched config schema` prints a JSON schema for editors.

```yaml
mode: enforce
tenants:
  chat:                       # its cgroup is gpu.slice/chat
    weight: 4
  batch:
    match: {pod: "ml/batch-*"}  # pods of Kubernetes, by namespace and name
    class: batch
    quota: 50%
```

The file is read strictly. Unknown and duplicate keys, aliases, tags, tabs and values of the wrong type
are errors that name file, line, key and remedy (exit status 2), and nothing changes: a daemon that is
told to reload a bad file keeps the running configuration and says so in its log and in
`fairsched status`. Words such as `off` and `no` are words, not booleans; write `true` or `false`. A ratio is
a number from 0 to 1 or a percentage such as `30%`, always of one GPU. A duration is a number of seconds, or one
with its unit, such as `90s`, `15m`, `1h`, `7d`.

## Layers

What is in effect comes, in this order, from `fairsched tenant set` (kept by the daemon in
`state_dir/overrides.yaml`), the tenant's own section, `tenant_defaults`, the built-in default.
`fairsched config show` marks what does not stand in the file; `fairsched tenant unset` gives the file its
say back. An override can break no rule that the file could not break.

## Cgroups and their owners

Patterns are paths below the cgroup2 mount. `*` and `?` match within one component, `**` any number of
components (at the end: at least one). A match claims the cgroup with everything below it. A cgroup
has one owner: two tenants whose patterns could ever claim the same cgroup are an error, with an example.
Cgroups nobody claims are not held; their use of a GPU is shown as unmanaged.

%%MATCH%%

## Children and guarantees

A tenant with `children` is not held itself: its child cgroups are, each by its own share of the parent's
weight. A child's plain name wins over a pattern; child cgroups that match neither get weight 1.
Guarantees (`min`) of all tenants add up to 1 at most, those of children to at most their parent's.

`gpu`, `mechanisms` (but `freezer`), `control` and the directories are read at the start of the daemon; a
reload takes over everything else and names what has to wait.

## Keys
"""


def reference() -> str:
    """The text of docs/configuration.md."""
    return _INTRO.replace("%%MATCH%%", by_name()) + "\n".join(_section("", Config)) + "\n"


def _section(prefix: str, model: type[Section]) -> Iterator[str]:
    title = f"`{prefix.rstrip('.')}`" if prefix else "Top level"
    about = (model.__doc__ or "").strip().splitlines()[0]
    yield f"\n### {title}\n\n{about}\n"
    yield "| Key | Value | Default | |\n|---|---|---|---|"
    below: list[tuple[str, type[Section]]] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        section = _section_of(field)
        if section is not None and key not in ("tenants", "children"):
            each = "NAME." if typing.get_origin(field.annotation) is dict else ""
            below.append((f"{prefix}{key}.{each}", section))
            continue
        description = (field.description or "").replace("|", "\\|")
        yield f"| `{key}` | {_kind(field)} | {_default(field)} | {description} |"
        if key == "tenants" and section is not None:
            below.append((f"{prefix}tenants.NAME.", Tenant))
        elif key == "children" and model is Tenant:
            below.append((f"{prefix}children.NAME.", Child))
    for child_prefix, section in below:
        yield from _section(child_prefix, section)


def _section_of(field: FieldInfo) -> type[Section] | None:
    for annotation in (field.annotation, *typing.get_args(field.annotation)):
        if isinstance(annotation, type) and issubclass(annotation, Section):
            return annotation
    return None


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "none: it is needed"
    if field.default_factory is not None:
        return "`{}`"
    default = field.default
    if isinstance(default, tuple):
        default = list(default)
    return (
        f"`{_scalar(default if isinstance(default, (list, int, float, str, type(None))) else str(default))}`"
    )


def _kind(field: FieldInfo) -> str:
    validators = {getattr(item, "func", None) for item in field.metadata}
    words = (
        "ratio" if ratio in validators else "duration" if seconds in validators else _words(field.annotation)
    )
    if _urls in validators:
        words = "address or list of addresses"
    bounds = {type(item).__name__: item for item in field.metadata}
    lower, upper = bounds.get("Ge"), bounds.get("Le")
    if lower is not None and upper is not None and words not in ("ratio", "duration"):
        words = words.replace("number", f"number {lower.ge} to {upper.le}", 1)
    return words


def _words(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation == Ratio:
        return "ratio"
    if annotation in (Weight, float):
        return "number above 0"  # the only plain numbers are weights
    if origin is typing.Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(part) for part in arguments)
    if annotation == GpuWish:
        return "`all`, `none` or list of GPUs"
    if annotation == Under:
        return "path or list of paths"
    if annotation == Patterns:
        return "pattern or list of patterns"
    if annotation in (NameGlobs, PodGlobs, UnitGlobs):
        return "name or list of names"
    if origin is typing.Annotated:
        if any(getattr(item, "func", None) is seconds for item in arguments[1:]):
            return "duration"
        return _words(arguments[0])
    if origin is tuple:
        words = _words(arguments[0])
        return f"list of {words}" if words.endswith("`") else f"list of {words}s"
    if origin is dict:
        return "mapping"
    names = {"NoneType": "`null`", "str": "text", "int": "whole number", "float": "number"}
    return {**names, "bool": "`true`, `false`", "Path": "path"}.get(annotation.__name__, str(annotation))


if __name__ == "__main__":
    sys.stdout.write(reference())
