# SPDX-License-Identifier: Apache-2.0
"""The token counters on a metrics page (pure).

Problem. Every server spells its counter in its own way, in one of two formats, in several series; and a page is
written by a tenant, who may err or lie.

Approach. Lines that cannot belong to a wanted counter are dropped before anything is parsed (a page of vLLM has a
thousand lines, one or two of which matter), the rest goes to the parser of prometheus_client. Whatever is not a plain
count is an error with a reason in our words: nothing of a page's own text is shown to anybody.

Terms. A counter is *steady* when it counts tokens as they are made; others count those of a request when it ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from fairsched.config.tokens import AUTO, Selector, parse_selector

MAX_SERIES = 1024
MAX_LINE_BYTES = 8192
"""Of a wanted line. The parser's time grows with the square of it."""
MAX_TOKENS = float(2**53)
"""Beyond it a double cannot count by ones."""
_MODEL_LABELS = ("model_name", "model")
_OPENMETRICS = "application/openmetrics-text"
_END = b"# EOF"
_TYPE = b"# TYPE "
_SUFFIXES = ("_total", "_sum")


class PageError(Exception):
    """The page cannot be used. ``str`` says why, to whoever asks for the status."""


@dataclass(frozen=True)
class Counter:
    """Where a server counts the tokens it generates."""

    selector: Selector
    is_steady: bool = True


KNOWN: Sequence[Counter] = (
    # vLLM, also as a backend of Triton: each engine step adds what it made.
    Counter(Selector("vllm:generation_tokens_total")),
    # SGLang adds a request when it ends.
    Counter(Selector("sglang:generation_tokens_total"), is_steady=False),
    # text-generation-inference (TGI) has a histogram over requests, whose sum is the counter.
    Counter(Selector("tgi_request_generated_tokens_sum"), is_steady=False),
    # Triton has no tokens of its own; its TensorRT-LLM backend has a histogram over responses.
    Counter(
        Selector("nv_llm_output_token_len_sum", (("response_metric_type", "total_output_tokens"),)),
        is_steady=False,
    ),
    # trtllm-serve, the server that comes with TensorRT-LLM.
    Counter(Selector("trtllm_generation_tokens_total"), is_steady=False),
)
"""What ``tokens_metric: auto`` looks for."""


@dataclass(frozen=True)
class Reading:
    """What a page says."""

    series: Mapping[str, float]
    """Tokens since some beginning, by series."""
    metric: str
    """Name of the counter, as on the page."""
    models: frozenset[str]
    """Labels that name the model; empty where none does."""
    is_steady: bool


def counters_of(metric: str) -> Sequence[Counter]:
    """What to look for, for a value of ``tokens_metric``. Raises ValueError when it is no selector."""
    if metric == AUTO:
        return KNOWN
    selector = parse_selector(metric)
    known = {counter.selector.name: counter.is_steady for counter in KNOWN}
    return (Counter(selector, all(known.get(name, True) for name in spellings(selector.name))),)


def spellings(name: str) -> Sequence[str]:
    """How else a page may write the name.

    A counter has ``_total`` or not, a histogram or summary a ``_sum``; and where a format has no colons, they are
    ``_``.
    """
    found = [name]
    if name.endswith("_total"):
        found.append(name.removesuffix("_total"))
    elif not name.endswith("_sum"):
        found += [name + suffix for suffix in _SUFFIXES]
    return list(dict.fromkeys([*found, *(one.replace(":", "_") for one in found)]))


class Sieve:
    """Keeps the lines of a page that matter for some counters. Feed it line by line, then :meth:`read`."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._counters = counters
        names = sorted({name for counter in counters for name in spellings(counter.selector.name)})
        self._is_wanted = re.compile(f"(?:{'|'.join(map(re.escape, names))})[{{ \\t]".encode()).match
        self._names = {name.encode() for name in names}
        self._kept: list[bytes] = []
        self._gauges: set[str] = set()
        self._is_ended = False

    def feed(self, line: bytes) -> None:
        """One line with its newline. Raises PageError as soon as the page cannot be used."""
        if self._is_wanted(line):
            if len(line) > MAX_LINE_BYTES:
                raise PageError(f"a series has a name of more than {MAX_LINE_BYTES} bytes")
            if len(self._kept) >= MAX_SERIES:
                raise PageError(f"more than {MAX_SERIES} series count tokens")
            self._kept.append(line)
        elif line.startswith(_TYPE):
            words = line.split()
            if len(words) == 4 and words[3] == b"gauge" and words[2] in self._names:
                self._gauges.add(words[2].decode())
        elif line.startswith(_END):
            self._is_ended = True

    def read(self, content_type: str) -> Reading:
        """Raises PageError."""
        if content_type.strip().lower().startswith(_OPENMETRICS) and not self._is_ended:
            raise PageError("it breaks off: an OpenMetrics page ends in # EOF")
        samples = self._samples()
        found = [one for counter in self._counters if (one := self._pick(counter, samples)) is not None]
        if not found:
            raise PageError("it shows no token counter that is looked for; name one with tokens_metric")
        if len(found) > 1:
            names = ", ".join(one.metric for one in found)
            raise PageError(f"it shows several token counters ({names}): choose one with tokens_metric")
        return found[0]

    def _samples(self) -> list[Sample]:
        """A line of a series is the same in both formats, but for exemplars, which this parser skips.

        That of OpenMetrics would refuse pages that prometheus_client itself writes: colons in types, none in samples.
        """
        text = b"".join(self._kept).decode("utf-8", "replace")
        try:
            return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        except (ValueError, IndexError, KeyError, TypeError):  # it raises all of these on nonsense
            raise PageError("a line of the token counter is not in the format of Prometheus") from None

    def _pick(self, counter: Counter, samples: Iterable[Sample]) -> Reading | None:
        """The first spelling that has series with the wanted labels."""
        for name in spellings(counter.selector.name):
            chosen = [
                sample
                for sample in samples
                if sample.name == name and set(counter.selector.labels) <= sample.labels.items()
            ]
            if not chosen:
                continue
            if name in self._gauges:
                raise PageError(f"{name} is a gauge, not a counter: name another one with tokens_metric")
            models = {
                sample.labels[label] for sample in chosen for label in _MODEL_LABELS if label in sample.labels
            }
            return Reading(_series(chosen), name, frozenset(models), counter.is_steady)
        return None


def _series(samples: Iterable[Sample]) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in samples:
        if not 0 <= sample.value <= MAX_TOKENS:  # NaN is not, either
            raise PageError(f"{sample.name} is not a count from 0 to 2^53")
        key = f"{sample.name} {sorted(sample.labels.items())}"
        if key in found:
            raise PageError(f"{sample.name} stands twice on it with the same labels")
        found[key] = float(sample.value)
    return found
