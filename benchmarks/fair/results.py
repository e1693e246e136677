# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: one JSON document per scenario, policy and seed.

Problem. A full measurement takes an hour; it must survive an interruption and must never mix runs of different
settings unseen.

Approach. ``results/<scenario>/<policy>-seed<seed>.json`` appears whole or not at all. A run is asked for by
what decides its outcome (the scenario file's content, policy, seed, seconds): ``find`` returns the document
of exactly these settings, or None, and then it is to be measured. Documents stay on the machine that measured
them; what the repository keeps of them: ``summary``. Tables, bars and pictures are made from documents alone.
What differs between the documents of a scenario (length, machine, commit) is said by ``differences`` and
stands under every table. Whether what is found may stand for a run of now: ``origin``.

Terms. document: what one run leaves behind. figure: a name in its ``measures``. root: the directory that has
a directory per scenario.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.fair import scenario as scenario_files
from fairsched.base.files import replace_file
from fairsched.errors import FairschedError

ROOT = Path(__file__).resolve().parent.parent / "results"
Document = Mapping[str, Any]
_D = TypeVar("_D", bound=Document)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,47}")
_FILE = re.compile(r"(?P<policy>[a-z0-9][a-z0-9._-]*)-seed(?P<seed>\d+)\.json")
_SERIES_DIGITS = 6
_KINDS: Mapping[str, tuple[type, ...]] = {
    "scenario": (str,),
    "policy": (str,),
    "seed": (int,),
    "seconds": (int, float),
    "machine": (str, type(None)),
    "kernel": (str, type(None)),
    "cpus": (int, type(None)),
    "commit": (str, type(None)),
    "started": (str,),
    "settings_hash": (str,),
    "measures": (dict,),
    "series": (dict,),
    "notes": (list,),
}
_FIRST_POLICIES = ("none", "fairsched")


class ResultError(FairschedError):
    """A file of results is damaged, foreign, or cannot be written."""


# ---- one document ----


def settings_hash(scenario_file: Path, policy: str, seed: int, seconds: float) -> str:
    """Names what decides the outcome. The commit does not: it is recorded, and --fresh measures again."""
    try:
        content = scenario_file.read_bytes()
    except OSError as error:
        raise ResultError(
            f"{scenario_file}: {error.strerror}", remedy="name a scenario file that can be read"
        ) from error
    settings = json.dumps([hashlib.sha256(content).hexdigest(), policy, seed, float(seconds)])
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def path_of(scenario: str, policy: str, seed: int, root: Path = ROOT) -> Path:
    """Where the document of a run lies."""
    for word, name in (("scenario", scenario), ("policy", policy)):
        if not _NAME.fullmatch(name):
            raise ResultError(f"{word} {name!r} cannot name a file", remedy="use a-z 0-9 . _ - only")
    return root / scenario / f"{policy}-seed{seed}.json"


def write(document: Document, root: Path = ROOT) -> Path:
    """Keep a document; returns where. It replaces an older one of the same name, whole or not at all."""
    problem = problem_of(document)
    if problem:
        raise ResultError(f"result document: {problem}", remedy="this is a fault of the harness: report it")
    path = path_of(document["scenario"], document["policy"], document["seed"], root)
    write_json(path, document)
    return path


def read(path: Path) -> dict[str, Any]:
    """A document. Raises ResultError that names the file and what to do."""
    remedy = "remove the file and measure again"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ResultError(f"{path}: cannot be read: {error}", remedy=remedy) from error
    problem = problem_of(document)
    if problem:
        raise ResultError(f"{path}: not a result of this harness: {problem}", remedy=remedy)
    named = _FILE.fullmatch(path.name)
    said = (document["scenario"], document["policy"], document["seed"])
    if not named or (path.parent.name, named["policy"], int(named["seed"])) != said:
        raise ResultError(
            f"{path}: holds scenario {said[0]}, policy {said[1]}, seed {said[2]}, which its name does not say",
            remedy="move it back where it belongs, or remove it and measure again",
        )
    return dict(document)


def find(scenario: str, policy: str, seed: int, wanted_hash: str, root: Path = ROOT) -> dict[str, Any] | None:
    """The finished document of exactly these settings; None: it is to be measured.

    A damaged file is as good as none: the run that follows replaces it.
    """
    path = path_of(scenario, policy, seed, root)
    try:
        document = read(path)
    except ResultError:
        return None
    return document if document["settings_hash"] == wanted_hash else None


def load(scenario: str, root: Path = ROOT) -> list[dict[str, Any]]:
    """Every document of a scenario, by policy (none first, then fairsched) and seed."""
    return in_order(read(path) for path in (root / scenario).glob("*-seed*.json"))


def in_order(documents: Iterable[_D]) -> list[_D]:
    """Documents of one scenario by policy (none first, then fairsched) and seed."""
    listed = list(documents)
    order = policies(listed)
    return sorted(listed, key=lambda document: (order.index(document["policy"]), document["seed"]))


def policies(documents: Iterable[Document]) -> list[str]:
    """In the order in which they are shown."""
    names = {document["policy"] for document in documents}
    return [name for name in _FIRST_POLICIES if name in names] + sorted(names - set(_FIRST_POLICIES))


def by_policy(documents: Iterable[Document]) -> dict[str, list[Document]]:
    """Documents of each policy, in the order in which they are shown."""
    listed = list(documents)
    return {name: [d for d in listed if d["policy"] == name] for name in policies(listed)}


def whole(document: Document, figure: str) -> float | None:
    """A figure of the whole run."""
    value: float | None = document["measures"]["whole"].get(figure)
    return value


def leaf_values(document: Document, figure: str) -> dict[str, float | None]:
    """A figure of every leaf."""
    return {leaf: figures.get(figure) for leaf, figures in document["measures"]["leaves"].items()}


def is_current(document: Document, scenario_file: Path) -> bool:
    """False when the scenario file is another than at the time of the measurement."""
    if not scenario_file.exists():
        return False
    now = settings_hash(scenario_file, document["policy"], document["seed"], document["seconds"])
    return bool(now == document["settings_hash"])


def problem_of(document: object) -> str:
    """What is wrong with it; empty when nothing is."""
    if not isinstance(document, Mapping):
        return "no mapping"
    for key, kinds in _KINDS.items():
        if key not in document:
            return f"the key {key} is missing"
        if not isinstance(document[key], kinds) or isinstance(document[key], bool):
            return f"the key {key} is of another type"
    measures = document["measures"]
    for key in ("whole", "leaves"):
        if not isinstance(measures.get(key), Mapping):
            return f"the key measures.{key} is missing or no mapping"
    sections = [("whole", measures["whole"]), *((f"leaves.{k}", v) for k, v in measures["leaves"].items())]
    for name, section in sections:
        if not isinstance(section, Mapping):
            return f"measures.{name} is no mapping"
        for figure, value in section.items():
            if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
                return f"measures.{name}.{figure} is no number"
    return ""


# ---- over the seeds ----


def differences(documents: Sequence[Document]) -> list[str]:
    """What is not the same in documents that a table puts side by side."""
    said = []
    for key, what in (
        ("seconds", "runs of different length"),
        ("machine", "several machines"),
        ("kernel", "several kernels"),
        ("commit", "several commits"),
    ):
        values = sorted({_shown(document[key]) for document in documents})
        if len(values) > 1:
            said.append(f"{what}: {', '.join(values)}")
    seeds = {name: sorted(d["seed"] for d in same) for name, same in by_policy(documents).items()}
    if len({tuple(numbers) for numbers in seeds.values()}) > 1:
        said.append("seeds differ: " + ", ".join(f"{name} {len(n)}" for name, n in seeds.items()))
    return said


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value or "unknown")


def changed_scenarios(documents: Iterable[Document], directory: Path = scenario_files.DIRECTORY) -> list[str]:
    """Scenarios whose file is another now than when they were measured; a file elsewhere cannot be asked."""
    files = [(document, directory / f"{document['scenario']}.yaml") for document in documents]
    return sorted({d["scenario"] for d, file in files if file.exists() and not is_current(d, file)})


# ---- files ----


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Atomically, and so that a diff of two runs can be read: one line per leaf, series of few digits."""
    remedy = "free the space or name another directory"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, _text(data).encode(), mode=0o644)
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}", remedy=remedy) from error


def _text(data: Mapping[str, Any]) -> str:
    given = {key: _finite(value, key == "series") for key, value in data.items()}
    return "".join(_lines(given, 0)) + "\n"


def _lines(value: Any, depth: int) -> Iterator[str]:
    """Three levels of mappings are unfolded; what lies below them stands on one line."""
    if not isinstance(value, dict) or not value or depth >= 3:
        yield json.dumps(value, allow_nan=False)
        return
    yield "{\n"
    for number, (key, inner) in enumerate(value.items()):
        yield ",\n" * (number > 0) + " " * (depth + 1) + json.dumps(key) + ": "
        yield from _lines(inner, depth + 1)
    yield "\n" + " " * depth + "}"


def _finite(value: Any, is_series: bool = False) -> Any:
    """Not a number is not known: null. JSON has no word for the others, and readers choke on them."""
    if isinstance(value, Mapping):
        return {str(key): _finite(inner, is_series) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner, is_series) for inner in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.{_SERIES_DIGITS}g}") if is_series else value
    return value
