# SPDX-License-Identifier: Apache-2.0
"""What the repository keeps of the fairness measurements: every figure of every run, in one file.

Problem. A run leaves a document of some 25 kB, most of it series for pictures; hundreds of them do not belong into a
repository. What the pages quote must still be checked against what was measured, by whoever has a clone.

Approach. ``<root>/fairness.json`` holds each run without its series, in figures of nine digits. Names of figures and
what made the runs are written once, and runs refer to them by number. ``read`` returns documents as ``results`` has
them, with empty series, so that tables, bars and pages need nothing else. ``update`` replaces the runs of some
scenarios by the documents that lie beside the file; a run of which no document lies there stays as it is.

Terms. packed: as it stands in the file. Of a tenant that lacks a figure its neighbours have, that figure is None.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fair import results
from benchmarks.fair.results import Document, ResultError

NAME = "fairness.json"
_DIGITS = 9
_MADE = ("machine", "kernel", "cpus", "commit", "code_hash")
"""What many runs have in common."""
_OWN = ("policy", "seed", "seconds", "started", "settings_hash")
_REMEDY = "take the file from git again, or remove it and measure again"


def path_of(root: Path = results.ROOT) -> Path:
    """Where the summary of the results below ``root`` lies."""
    return root / NAME


def read(root: Path = results.ROOT) -> list[dict[str, Any]]:
    """Every run, by scenario, policy and seed; none where there is no summary. Raises ResultError."""
    path = path_of(root)
    if not path.exists():
        return []
    try:
        packed = json.loads(path.read_text(encoding="utf-8"))
        documents = _unpacked(packed)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultError(f"{path}: cannot be read: {error!r}", remedy=_REMEDY) from error
    for document in documents:
        problem = results.problem_of(document)
        if problem:
            raise ResultError(f"{path}: {document['scenario']}: {problem}", remedy=_REMEDY)
    return documents


def update(scenarios: Iterable[str], root: Path = results.ROOT) -> list[dict[str, Any]]:
    """Take over the documents of these scenarios; returns what ``read`` returns afterwards."""
    runs = {_run_of(document): document for document in read(root)}
    for name in scenarios:
        runs |= {_run_of(document): document for document in results.load(name, root)}
    results.write_json(path_of(root), _packed(_sorted(runs.values())))
    return read(root)


def _run_of(document: Document) -> tuple[str, str, int]:
    return document["scenario"], document["policy"], document["seed"]


def _sorted(documents: Iterable[Document]) -> list[Document]:
    by_scenario = sorted(documents, key=lambda document: str(document["scenario"]))
    names = dict.fromkeys(document["scenario"] for document in by_scenario)
    return [
        document
        for name in names
        for document in results.in_order(d for d in by_scenario if d["scenario"] == name)
    ]


# ---- the file ----


def _packed(documents: Sequence[Document]) -> dict[str, Any]:
    """Each value as JSON has it; the tables in the order in which runs first need them."""
    figures: dict[str, int] = {}
    made: dict[str, int] = {}
    scenarios: dict[str, dict[str, Any]] = {}
    for document in documents:
        measures = document["measures"]
        leaf_figures = list(dict.fromkeys(name for leaf in measures["leaves"].values() for name in leaf))
        names = {"whole": list(measures["whole"]), "leaf": leaf_figures}
        run = {
            **{key: document[key] for key in _OWN},
            "made": _number_of({key: document.get(key) for key in _MADE}, made),
            "figures": _number_of(names, figures),
            "whole": [_short(value) for value in measures["whole"].values()],
            "leaves": {
                leaf: [_short(values.get(name)) for name in leaf_figures]
                for leaf, values in measures["leaves"].items()
            },
            "misbehaviour": document.get("misbehaviour", {}),
            "notes": list(document["notes"]),
        }
        key = f"{document['policy']}-seed{document['seed']}"
        scenarios.setdefault(document["scenario"], {})[key] = run
    return {"figures": _listed(figures), "made": _listed(made), "scenarios": scenarios}


def _number_of(value: Mapping[str, Any], table: dict[str, int]) -> int:
    return table.setdefault(json.dumps(value), len(table))


def _listed(table: Mapping[str, int]) -> dict[str, Any]:
    return {str(number): json.loads(text) for text, number in table.items()}


def _short(value: float | None) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _unpacked(packed: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        _document(name, run, packed) for name, runs in packed["scenarios"].items() for run in runs.values()
    ]


def _document(scenario: str, run: Mapping[str, Any], packed: Mapping[str, Any]) -> dict[str, Any]:
    names = packed["figures"][str(run["figures"])]
    leaves = {leaf: dict(zip(names["leaf"], values, strict=True)) for leaf, values in run["leaves"].items()}
    return {
        "scenario": scenario,
        **{key: run[key] for key in _OWN},
        **packed["made"][str(run["made"])],
        "measures": {"whole": dict(zip(names["whole"], run["whole"], strict=True)), "leaves": leaves},
        "misbehaviour": run["misbehaviour"],
        "series": {},
        "notes": run["notes"],
    }
