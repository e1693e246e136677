# SPDX-License-Identifier: Apache-2.0
"""The part of the companion: pages over real HTTP, statuses made by hand, and what comes of both."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from fairsched.companion.keeper import wishes
from fairsched.companion.part import Finding, Moment
from fairsched.companion.slis.part import SliPart
from fairsched.config import Config, from_bytes
from fairsched.protocol.status import TenantState
from tests.conftest import is_full
from tests.unit.companion.slis.made import GPU, OTHER, report, tenant, waits

Wait = Callable[..., None]


class Model:
    """A server that makes tokens evenly, and says so as vLLM does."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self.registry = CollectorRegistry()
        labels = ["model_name", "engine"]
        counter = Counter("vllm:generation_tokens", "Tokens.", labels, registry=self.registry).labels(
            "m", "0"
        )
        self._begin_s, self._counter = time.monotonic(), counter

    def page(self) -> bytes:
        self._counter.inc((time.monotonic() - self._begin_s) * self.per_s - self._counter._value.get())
        return generate_latest(self.registry)


@contextmanager
def exporting(model: Model) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = model.page()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()
            thread.join()


def config(text: str) -> Config:
    return from_bytes(text.encode(), "test.yaml")


def now(*names: str) -> Moment:
    due = {GPU: 1 / max(1, len(names))}
    return Moment(report(time.monotonic(), *(tenant(name, due) for name in names)))


def test_rates_of_live_servers(wait_until: Wait) -> None:
    """With more time, the verdict too, which takes ten seconds of counting; the node test has it always."""
    with exporting(Model(100)) as chat, exporting(Model(60)) as batch, exporting(Model(40)) as replica:
        part = SliPart(
            config(
                f"tenants: {{chat: {{tokens_url: '{chat}'}}, batch: {{tokens_url: ['{batch}', '{replica}']}}}}"
            )
        )
        found: list[Finding] = []

        def is_known() -> bool:
            """100 token/s of both, one of which has two pages."""
            found.append(part.take(now("chat", "batch")))
            rates = [found[-1].tokens[name].tokens_per_s for name in ("chat", "batch")]
            slis = found[-1].slis
            is_judged = slis is not None and slis.is_fair is True
            return all(rate is not None and 97 < rate < 103 for rate in rates) and (
                is_judged or not is_full()
            )

        try:
            wait_until(is_known, 60, "the rates are known")
        finally:
            part.close()
    assert (found[-1].tokens["chat"].note, found[-1].tokens["chat"].failures) == (None, 0)
    assert found[0].slis is not None and found[0].slis.is_fair is None, "nothing is known at once"


def test_a_page_that_cannot_be_read_is_named_and_hurts_nobody(wait_until: Wait) -> None:
    with exporting(Model(100)) as chat:
        part = SliPart(
            config(
                f"tenants: {{chat: {{tokens_url: '{chat}'}}, "
                "batch: {tokens_url: 'http://127.0.0.1:1/m?key=hunter2', tokens_metric: made}}"
            )
        )
        found: list[Finding] = []

        def is_known() -> bool:
            found.append(part.take(now("chat", "batch")))
            tokens = found[-1].tokens
            return tokens["chat"].tokens_per_s is not None and tokens["batch"].failures > 1

        try:
            wait_until(is_known, 60, "one is known, the other failed")
        finally:
            part.close()
    batch = found[-1].tokens["batch"]
    assert (batch.tokens_per_s, batch.cv_ratio) == (None, None)
    assert batch.note is not None and batch.note.startswith("no tokens from http://127.0.0.1:1/m: ")


def test_without_token_counters_there_are_the_other_two() -> None:
    part = SliPart(Config())
    for second in range(12):
        found = part.take(Moment(report(second, tenant("a", {GPU: 1.0}, waits={GPU: waits(2, second)}))))
    part.close()
    assert found.slis is not None
    assert found.slis.queue_delay_p99_ms == pytest.approx(2.1, abs=0.1)
    assert found.slis.queue_delay_floor_ms == 0, "it waits for nobody"
    assert found.slis.token_rate_reason == "no tenant has a tokens_url"
    assert found.tokens == {}


def test_the_floor_of_the_queue_delay_is_that_of_the_fullest_gpu_of_the_window() -> None:
    part = SliPart(config("gpu: {timeslice_us: 1900, switch_us: 100}\nslis: {window_s: 12}"))
    floors = []
    for second in range(20):
        here = [tenant(name, {GPU: 0.3}) for name in "abc"[: 3 if second < 5 else 2]]
        monitor = tenant("monitor", {GPU: 0.1, OTHER: 1.0}, state=TenantState.EXEMPT)
        found = part.take(Moment(report(second, *here, monitor, tenant("away", {GPU: None}))))
        assert found.slis is not None
        floors.append(found.slis.queue_delay_floor_ms)
    part.close()
    assert floors == [pytest.approx(1.25 * 3 * 2.0)] * 17 + [pytest.approx(1.25 * 2 * 2.0)] * 3


def test_token_counters_are_a_reason_for_a_companion_and_a_change_of_them_for_another() -> None:
    url = "tenants: {chat: {tokens_url: 'http://h/m'}}"
    assert wishes(config("tenants: {chat: {}}")) == {}
    wanted = wishes(config(url))
    assert wanted
    assert wishes(config(url + "\nslis: {window_s: 30}")) != wanted
    assert wishes(config(url.replace("/m'", "/n'"))) != wanted
    assert wishes(config(url.replace("}}", ", weight: 3}}"))) == wanted
