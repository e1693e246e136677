# SPDX-License-Identifier: Apache-2.0
"""The exporter whole: a page over HTTP, shared, packed, negotiated."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fairsched.companion.address import address_of, check_free
from fairsched.companion.exporter.book import OPENMETRICS, TEXT
from fairsched.companion.exporter.pages import SHARED_S, Pages, choose_format
from fairsched.companion.exporter.part import Exporter
from fairsched.companion.part import Node
from fairsched.config.outward import Metrics
from fairsched.errors import ConfigError, ControlError
from tests.support import wait_until
from tests.unit.companion.exporter.made import PATIENCE_S, Exported, free_port
from tests.unit.protocol import fakes


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        (":9477", ("127.0.0.1", 9477)),
        ("0.0.0.0:9477", ("0.0.0.0", 9477)),
        ("[::1]:9477", ("::1", 9477)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_addresses(listen: str, address: tuple[str, int]) -> None:
    assert address_of(listen) == address


@pytest.mark.parametrize("listen", [":0", ":65536", "localhost:99999"])
def test_a_port_that_is_none_is_a_mistake_with_a_key(listen: str) -> None:
    with pytest.raises(ConfigError) as caught:
        address_of(listen)
    assert "metrics.listen" in str(caught.value)


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    return Exported(tmp_path)


def test_a_scrape_asks_the_daemon_and_the_port_is_given_back(tmp_path: Path, exported: Exported) -> None:
    listen = f":{exported.port}"
    with exported.running():
        assert b'fairsched_build_info{version="0.1.0"} 1\n' in exported.get()[2]
        with pytest.raises(ConfigError, match="cannot listen on"):
            Exporter(Metrics(listen=listen), Node(tmp_path / "s"))
        with pytest.raises(ConfigError, match="cannot listen on"):
            check_free(listen)
    with pytest.raises(urllib.error.URLError):
        exported.get()
    check_free(listen)
    Exporter(Metrics(listen=listen), Node(tmp_path / "s")).close()


def test_scrapes_of_one_second_cost_the_daemon_one_answer(exported: Exported) -> None:
    with exported.running(), ThreadPoolExecutor(40) as pool:
        pages = list(pool.map(lambda _: exported.get()[2], range(40)))
        assert all(b"fairsched_up 1\n" in page for page in pages)
        # a slow machine may need more than the second that is shared
        assert len(exported.daemon.asked) < 10


def test_a_daemon_that_does_not_answer_is_down_and_the_exporter_is_not(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/metrics"
    exporter = Exporter(Metrics(listen=f":{port}"), Node(tmp_path / "nobody"))
    with contextlib.closing(exporter), urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        page = answer.read()
    assert b"fairsched_up 0\n" in page
    assert b"fairsched_build_info" not in page


@contextlib.contextmanager
def hanging(path: Path) -> Iterator[list[socket.socket]]:
    """A daemon that takes connections and says nothing; those that it took."""
    taken: list[socket.socket] = []

    def take(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(listener.accept()[0])

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=take, args=(listener,))
        thread.start()
        try:
            yield taken
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    for one in taken:
        one.close()


def test_of_a_daemon_that_hangs_it_is_said_within_three_seconds(tmp_path: Path) -> None:
    """Also where another part of the companion has begun to ask it, and would wait for longer."""
    port = free_port()
    node = Node(tmp_path / "s")
    exporter = Exporter(Metrics(listen=f":{port}"), node)
    with hanging(tmp_path / "s") as taken, contextlib.closing(exporter), ThreadPoolExecutor(1) as pool:
        other = pool.submit(node.report, 60.0)
        wait_until(lambda: taken, PATIENCE_S, "another part asks")
        begin_s = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            page = answer.read()
        took_s = time.monotonic() - begin_s
        with pytest.raises(ControlError, match="did not answer"):
            other.result()
        assert b"fairsched_up 0\n" in page
        assert took_s < 3.0
        assert len(taken) == 1, "they share the news"


def test_a_page_is_made_once_a_second_and_so_is_the_news_that_there_is_none() -> None:
    now_s, asked = [100.0], [0]
    answers: list[Any] = [fakes.status(), ControlError("it hangs"), fakes.status()]

    def ask(max_age_s: float) -> Any:
        assert max_age_s == SHARED_S
        asked[0] += 1
        answer = answers[asked[0] - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def scrapes() -> list[bytes]:
        pages = Pages(ask, clock=lambda: now_s[0])
        found = []
        for step_s in (0.0, 0.5, 0.6, 0.5, 0.6):
            now_s[0] += step_s
            found.append(await pages.get(TEXT, is_packed=False))
            assert gzip.decompress(await pages.get(TEXT, is_packed=True)) == found[-1]
        return found

    found = asyncio.run(scrapes())
    assert [b"fairsched_up 1\n" in page for page in found] == [True, True, False, False, True]
    assert found[0] is found[1], "not even written again"
    assert asked == [3]


def test_the_format_and_the_packing_are_those_that_were_asked_for(exported: Exported) -> None:
    prometheus = (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    )
    with exported.running():
        _, headers, text = exported.get()
        assert (headers["Content-Type"], headers["Content-Encoding"]) == (TEXT, None)
        _, headers, packed = exported.get(Accept=prometheus, Accept_Encoding="gzip")
        assert (headers["Content-Type"], headers["Content-Encoding"]) == (OPENMETRICS, "gzip")
        assert gzip.decompress(packed).endswith(b"# EOF\n")
        assert b"# EOF" not in text
        assert exported.get("/")[2].startswith(b"<!doctype html>")
        assert exported.get("/nothing")[0] == 404


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("application/openmetrics-text; version=1.0.0", OPENMETRICS),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", TEXT),
        ("application/openmetrics-text;q=0,text/html", TEXT),
        ("application/openmetrics-text;q=nonsense", TEXT),
        ("text/plain;q=0.5, Application/OpenMetrics-Text;q=0.5", OPENMETRICS),
    ],
)
def test_openmetrics_is_for_those_who_prefer_it(accept: str, wanted: str) -> None:
    assert choose_format(accept) == wanted


def test_other_parts_have_a_say(tmp_path: Path) -> None:
    rows = [("fairsched_escalation_level", (), 2.0), ("fairsched_escalation_steps", ("mig", "done"), 3.0)]
    exported = Exported(tmp_path, others=[lambda: rows])
    with exported.running():
        page = exported.get()[2]
    assert b"fairsched_escalation_level 2.0\n" in page
    assert b'fairsched_escalation_steps_total{step="mig",outcome="done"} 3.0\n' in page
