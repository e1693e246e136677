# SPDX-License-Identifier: Apache-2.0
"""The exporter as a part of the companion: a server of its own, in a thread of its own; its turns are for upkeep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from fairsched.companion.address import IN_USE, address_of, refused
from fairsched.companion.exporter.gpm import GpmRows
from fairsched.companion.exporter.http import Server
from fairsched.companion.exporter.pages import Checks, MetricRow, Pages, Site
from fairsched.companion.exporter.webconfig import WebConfig
from fairsched.companion.exporter.xids import XidRows
from fairsched.companion.part import Moment, Node
from fairsched.config.outward import Metrics

logger = logging.getLogger(__name__)


class Exporter:
    """Answers scrapes until it is closed. Raises ConfigError when the address cannot be had, or for a bad web_config.

    ``others``: what other parts have to say, as rows of families of the catalogue; called from a thread of ours.
    """

    name = "exporter"
    interval_s = 60.0
    wants_decisions = False

    def __init__(
        self, metrics: Metrics, node: Node, others: Iterable[Callable[[], Iterable[MetricRow]]] = ()
    ) -> None:
        listen = metrics.listen or ""
        host, port = address_of(listen)
        self._web, self._checks = WebConfig(metrics.web_config), Checks()
        self._gpm, self._xids = GpmRows(), XidRows()
        pages = self._pages = Pages(
            node.report,
            explain=node.explain,
            others=(*others, self._gpm.rows, self._xids.rows),
            most_tenants=metrics.max_tenants,
        )
        try:
            self._server = Server(
                host, port, Site(pages, self._web, self._checks).answer, tls=lambda: self._web.tls
            )
        except OSError as error:
            self._gpm.close()
            self._xids.close()
            raise refused(listen, error.strerror or str(error), IN_USE) from error
        pages.counts = lambda: (self._server.answered, self._server.refused)
        scheme = "http" if self._web.tls is None else "https"
        logger.info("metrics=%s://%s:%d/metrics", scheme, host, port)

    def take(self, moment: Moment) -> None:
        """Nothing of the moment: a scrape asks for itself. Certificates and users may have changed."""
        self._web.refresh()

    def close(self) -> None:
        """Give the port back."""
        self._server.close()
        self._pages.close()
        self._gpm.close()
        self._xids.close()
        self._checks.close()
