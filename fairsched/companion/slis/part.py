# SPDX-License-Identifier: Apache-2.0
"""The service levels as a part of the companion: a status a second, what the pages said, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fairsched.companion.part import Finding, Moment
from fairsched.companion.slis.curve import Curve
from fairsched.companion.slis.formulas import queue_delay_floor_ms
from fairsched.companion.slis.measure import S, Tokens, measure
from fairsched.companion.slis.page import Reading, counters_of
from fairsched.companion.slis.scraper import PageReader
from fairsched.companion.slis.window import Window, sample_of
from fairsched.config import Config
from fairsched.config.models import walk

_MARGIN_NS = 20 * S
"""How much longer than the window curves are kept: a held tenant's latest reading may be old."""


@dataclass
class _Source:
    """One tenant's pages."""

    readers: list[PageReader]
    cost_ms: float | None
    curves: list[Curve] = field(default_factory=list)
    latest: list[Reading | None] = field(default_factory=list)

    def tokens(self) -> Tokens:
        """As far as the pages have been read."""
        known = [reading for reading in self.latest if reading is not None]
        kinds = {(reading.metric, reading.models) for reading in known if reading.models}
        is_one = len(kinds) == 1 and len(known) == len(self.latest)
        failing = [reader for reader in self.readers if reader.error is not None]
        return Tokens(
            curves=self.curves,
            kind=next(iter(kinds)) if is_one else None,
            cost_ms=self.cost_ms,
            is_steady=all(reading.is_steady for reading in known),
            failures=sum(reader.failures for reader in self.readers),
            note=f"no tokens from {failing[0].shown_url}: {failing[0].error}" if failing else None,
        )


class SliPart:
    """See the package. Owns the threads that read pages."""

    name = "slis"
    interval_s = 1.0
    wants_decisions = False

    def __init__(self, config: Config) -> None:
        length_ns = config.slis.window_s * S
        self._window = Window(length_ns)
        self._turn_ms = (config.gpu.timeslice_us + config.gpu.switch_us) / 1000
        self._sources: Mapping[str, _Source] = {
            path: _Source(
                [
                    PageReader(url, counters_of(node.tokens_metric), config.slis.timeout_s)
                    for url in node.tokens_url
                ],
                node.token_cost_ms,
                [Curve(length_ns + _MARGIN_NS) for _ in node.tokens_url],
                [None] * len(node.tokens_url),
            )
            for path, node in walk(config.tenants)
            if node.tokens_url
        }
        for source in self._sources.values():
            for reader in source.readers:
                reader.start()

    def take(self, moment: Moment) -> Finding:
        """One status. Never waits for a page."""
        self._window.add(sample_of(moment.report))
        for source in self._sources.values():
            for number, reader in enumerate(source.readers):
                for t_ns, reading in reader.take():
                    source.curves[number].add(t_ns, reading.series)
                    source.latest[number] = reading
        slis, rates = measure(self._window, {name: source.tokens() for name, source in self._sources.items()})
        floor_ms = queue_delay_floor_ms(self._window.most_tenants, self._turn_ms)
        return Finding(slis=replace(slis, queue_delay_floor_ms=floor_ms), tokens=rates)

    def close(self) -> None:
        """Read no more pages."""
        for source in self._sources.values():
            for reader in source.readers:
                reader.close()
