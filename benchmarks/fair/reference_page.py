# SPDX-License-Identifier: Apache-2.0
"""docs/scenarios.md, written from the schema and the shipped files: ``python -m benchmarks.fair.reference_page``.

Prints the page; ``--write`` writes it.
"""

from __future__ import annotations

import fnmatch
import json
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from benchmarks.fair import marked, results, rungs
from benchmarks.fair.bars import BARS
from benchmarks.fair.scenario import Arrival, Gpu, Load, Scenario, Tenant, _Section, load, shipped
from benchmarks.tricks import TRICKS

PAGE = Path("docs/scenarios.md")
# Where each model stands in a file, in the order in which a file is read.
SECTIONS: tuple[tuple[str, type[_Section]], ...] = (
    ("Top level", Scenario),
    ("`gpus[]`", Gpu),
    ("`tenants.NAME`, `children.NAME`", Tenant),
    ("`loads[]`, `strangers[]`", Load),
    ("`arrival`", Arrival),
)

_INTRO = """\
# Scenarios

<!-- Written by `python -m benchmarks.fair.reference_page --write`; a test compares it with the schema. -->

A scenario says who shares which GPUs and what each of them does. It says nothing about who schedules: the same
file and seed is played under every policy. To measure a mix of your own, write a file and run, as root:

```
benchmarks/fairness.py --scenario FILE --policy NAME --seconds N --seed S --json OUT
```

`--policy` is `none` (the hardware takes turns), `fairsched`, one of its rungs (below), `fairsched-traced` (with the
GPU's trace of context switches), or what others do: `window-sigstop` (SIGSTOP over the quota of a 1 s window), `token`
(one exclusive token for the GPU), `nvml-feedback` (a loop on NVML's process utilisation). Without `--json`, policies
and seeds may be given more than once, the results are kept in `benchmarks/results/`, tables and pictures are made of
them. The file's name names the results.

A rung is fairsched on a host that gives less; `--source` and `--brake` name the policy, too:

@RUNGS@

The GPU is simulated; processes, cgroups, eBPF and the daemon are real. A GPU is busy with one context at a time and
takes turns, unless its keys say otherwise.

```yaml
description: a chat service, its batch work, and a team of two beside them
seconds: 20
gpus:
  - {slice_us: 2000}
tenants:
  chat:
    weight: 2
    loads:
      - {kernels: 20, kernel_us: 250, spread_ratio: 0.1, cpu_us: 500}   # some 180 token/s alone
  batch:
    class: batch
    quota: 0.3
    loads:
      - processes: 2
        kernels: 10
        kernel_us: 1000
        queue_depth: 4
  team:
    children:
      search:
        weight: 3
        loads:
          - {kernels: 5, kernel_us: 400, arrival: {pattern: poisson, rate_per_s: 40}}
      nightly:
        start_s: 5
        stop_s: 15
        loads:
          - {submit: graph, kernels: 100, kernel_us: 200}
```

A **step** is a token, a batch, an iteration: `kernels` launches, or one graph, and the wait for them. A **leaf** is
a tenant without children; it has loads and a cgroup of its own, and results name it by its path (`team/search`).
Seconds count from when everybody who is there from the start works; measuring begins `settle_s` later. A process draws
its random numbers from the seed, the leaf and its own number, so a seed is one course of events under every policy.

The file is read strictly: unknown keys and values of the wrong type are errors that name the file and the key.
YAML's anchors and merges (`&name`, `*name`, `<<`) may be used. Ratios are numbers from 0 to 1.

## Keys
"""

_RESULTS = """
## What comes out

One JSON document per run. `measures.whole` and `measures.leaves.LEAF` hold the figures, by names that end in their
unit; `null` is what does not apply or could not be told. `series` is what the pictures show: `at_s` (the end of a
window of 1 s), and by leaf `share`, `entitlement`, `tokens_per_s`, then `jain_1s` and, as 101 percentiles,
`latency_cdf_ms`. `machine`, `kernel`, `cpus`, `commit`, `started`, `seconds`, `seed` say how it came about,
`notes` what else is worth knowing. A run whose document exists is not made again (`--fresh` does) unless the file,
the seconds, the seed or the policy differ, or another machine, kernel or program made it (`code_hash`;
`--resume-any` keeps those). `benchmarks/fair/measures.py` says what each figure means.
"""


def page() -> str:
    """The text of docs/scenarios.md."""
    parts = [_INTRO.replace("@RUNGS@", _rungs())]
    for title, model in SECTIONS:
        parts += ["\n".join(_section(title, model)), "\n"]
    return "".join([*parts, "\n".join(_tricks()), "\n", _RESULTS, "\n".join(_shipped())]) + "\n"


def _rungs() -> str:
    names = [[f"`{rungs.Rung(source, brake).policy}`" for brake in rungs.BRAKES] for source in rungs.SOURCES]
    rows = [(f"`{source}`", *cells) for source, cells in zip(rungs.SOURCES, names, strict=True)]
    return marked.table(("`--source` \\ `--brake`", *(f"`{brake}`" for brake in rungs.BRAKES)), rows)


def _section(title: str, model: type[_Section]) -> Iterator[str]:
    about = (model.__doc__ or "").strip().splitlines()[0]
    yield f"\n### {title}\n\n{about}\n"
    yield "| Key | Value | Default | |\n|---|---|---|---|"
    for name, field in model.model_fields.items():
        description = (field.description or "").replace("|", "\\|")
        yield f"| `{field.alias or name}` | {kind(field)} | {_default(field)} | {description} |"


def _tricks() -> Iterator[str]:
    yield "\n### `trick`\n\nHostile programs in the place of the load's own; its other keys say what they submit.\n"
    yield "| Trick | |\n|---|---|"
    for name, trick in TRICKS.items():
        yield f"| `{name}` | {trick.description} |"


def _shipped() -> Iterator[str]:
    yield "\n## Shipped\n\nIn `benchmarks/scenarios/`. A bar is compared with the mean over the seeds.\n"
    yield "| Scenario | Shows | Bars, under fairsched |\n|---|---|---|"
    for path in shipped():
        bars = [bar for bar in BARS if fnmatch.fnmatch(path.stem, bar.scenarios)]
        limits = "; ".join(f"{bar.what} {bar.limit_text()}" for bar in bars)
        description = load(path).scenario.description.replace("|", "\\|")
        yield f"| `{path.stem}` | {description} | {limits} |"


# ---- a field in words ----


def kind(field: FieldInfo) -> str:
    """``number above 0``, ``list of mappings``, ..."""
    return _words(field.annotation, _bounds(field.metadata))


def _bounds(metadata: Sequence[Any]) -> dict[str, float]:
    """Pydantic splits constraints into one object each, or keeps them in a nested field."""
    found: dict[str, float] = {}
    for item in metadata:
        found.update(_bounds(item.metadata) if isinstance(item, FieldInfo) else {})
        for name in ("ge", "gt", "le", "lt"):
            value = getattr(item, name, None)
            found.update({name: value} if value is not None else {})
    return found


def _words(annotation: Any, bounds: dict[str, float]) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _words(arguments[0], {**bounds, **_bounds(arguments[1:])})
    if origin is typing.Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(part, bounds) for part in arguments)
    if origin is tuple:
        return f"list of {_words(arguments[0], {})}s"
    if origin is dict:
        return "mapping of tenants by name"
    if isinstance(annotation, type) and issubclass(annotation, _Section):
        return "mapping"
    words = {"NoneType": "`null`", "str": "text", "bool": "`true`, `false`"}
    numbers = {"int": "whole number", "float": "number"}
    name = annotation.__name__
    return words.get(name) or f"{numbers[name]}{_range(bounds)}"


def _range(bounds: dict[str, float]) -> str:
    least, above, most = bounds.get("ge"), bounds.get("gt"), bounds.get("le")
    if least is not None and most is not None:
        return f" {_plain(least)} to {_plain(most)}"
    lower = f" above {_plain(above)}" if above is not None else ""
    lower = f", {_plain(least)} or more" if least is not None else lower
    return lower + (f", at most {_plain(most)}" if most is not None else "")


def _plain(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, _Section):
        return "`{}`"
    if isinstance(value, tuple):
        return f"`[{', '.join('{}' for _ in value)}]`"
    if isinstance(value, float):
        return f"`{_plain(value)}`"
    return f"`{json.dumps(value)}`" if value != "" else ""


def main(argv: Sequence[str]) -> int:
    if argv == ["--write"]:
        (results.ROOT.parents[1] / PAGE).write_text(page(), encoding="utf-8")
        return 0
    sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
