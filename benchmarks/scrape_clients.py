# SPDX-License-Identifier: Apache-2.0
"""Clients of the exporter: ``python -m benchmarks.scrape_clients PORT SECONDS KIND``; prints what became of them.

Problem: who attacks from the same machine also takes its processors, and that is not the exporter's doing.

Approach: one process of the companion's priority, one asyncio loop, a session of its own. KIND is one of

    calm    one scrape a second, as a Prometheus in a hurry does
    timed   a scrape every 1.2 s, each on a new connection and of a new status; how long each took
    hostile at once: random requests on sixteen connections, 130 a second; 48 clients that send a byte now and then; 16
            that ask for a page and take a byte now and then; every second a hundred scrapes in parallel
    flood   the same with random requests one after the other, as fast as they are answered or cut off
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from fairsched.base.niceness import set_nice

HOST = "127.0.0.1"
_NICE = 10
_ACCEPT = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;version=0.0.4;q=0.5"
_HEADERS = f"Host: x\r\nAccept: {_ACCEPT}\r\nAccept-Encoding: gzip\r\nConnection: close\r\n"
_PAGE = f"GET /metrics HTTP/1.1\r\n{_HEADERS}\r\n".encode()
_WORDS = (
    b"GET ",
    b"HEAD ",
    b"/metrics",
    b" HTTP/1.1",
    b"\r\n",
    b"\r\n\r\n",
    b"Accept: ",
    b"\0",
    b"\xff",
    b":",
    b"q=",
)
_FUZZERS, _DRIPPING, _SIPPING, _CROWD = 16, 48, 16, 100
_FUZZ_PER_S = 130


class Clients:
    """All of them, until ``end_s``."""

    def __init__(self, port: int, seconds: float, seed: int = 1) -> None:
        self._port = port
        self._end_s = time.monotonic() + seconds
        self._dice = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.times_s: list[float] = []

    def _goes_on(self) -> bool:
        return time.monotonic() < self._end_s

    async def scrape(self) -> float | None:
        """Seconds from the connection to the last byte; None = it was not a whole page."""
        begin_s = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection(HOST, self._port)
            writer.write(_PAGE)
            answer = await asyncio.wait_for(reader.read(), 30)
            writer.close()
        except (OSError, asyncio.TimeoutError):
            return None
        took_s = time.monotonic() - begin_s
        head, _, body = answer.partition(b"\r\n\r\n")
        is_whole = head.startswith(b"HTTP/1.1 200") and gzip.decompress(body).endswith(b"# EOF\n")
        return took_s if is_whole else None

    async def every(self, pause_s: float) -> None:
        """Scrapes at this pace, one at a time."""
        while self._goes_on():
            took_s = await self.scrape()
            self.counts["scraped" if took_s is not None else "failed"] += 1
            if took_s is not None:
                self.times_s.append(took_s)
            await asyncio.sleep(pause_s)

    async def crowd(self) -> None:
        """A hundred at once, every second."""
        while self._goes_on():
            begin_s = time.monotonic()
            found = await asyncio.gather(*(self.scrape() for _ in range(_CROWD)))
            self.counts["crowd_scraped"] += sum(one is not None for one in found)
            self.counts["crowd_failed"] += sum(one is None for one in found)
            self.times_s += [one for one in found if one is not None]
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - begin_s)))

    async def fuzz(self, pause_s: float) -> None:
        """Random requests."""
        while self._goes_on():
            dice = self._dice
            sent = b"".join(
                dice.choice(_WORDS) if dice.random() < 0.7 else dice.randbytes(dice.randrange(40))
                for _ in range(dice.randrange(1, 12))
            )
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                reader, writer = await asyncio.open_connection(HOST, self._port)
                writer.write(sent)
                writer.write_eof()
                told = await asyncio.wait_for(reader.read(65536), 10)
                writer.close()
                self.counts["fuzz_answered" if told else "fuzz_cut_off"] += 1
            self.counts["fuzz"] += 1
            await asyncio.sleep(pause_s)

    async def drip(self) -> None:
        """A byte now and then, for ever."""
        while self._goes_on():
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, self._port)
                self.counts["dripping"] += 1
                for byte in b"GET /metrics HTTP/1.1\r\nA: " + b"x" * 5000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(0.5)
                    if writer.transport.is_closing() or not self._goes_on():
                        break
                writer.close()

    async def sip(self) -> None:
        """Ask for the page as it is, two megabytes, and take little of it."""
        while self._goes_on():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(HOST, self._port, limit=1024)
                self.counts["sipping"] += 1
                writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
                while self._goes_on() and await reader.read(1):
                    await asyncio.sleep(0.5)
                writer.close()


async def run(port: int, seconds: float, kind: str) -> dict[str, Any]:
    """What became of the clients."""
    clients = Clients(port, seconds)
    if kind in ("hostile", "flood"):
        pause_s = _FUZZERS / _FUZZ_PER_S if kind == "hostile" else 0.0
        tasks = [clients.crowd(), *(clients.fuzz(pause_s) for _ in range(_FUZZERS))]
        tasks += [*(clients.drip() for _ in range(_DRIPPING)), *(clients.sip() for _ in range(_SIPPING))]
    else:
        tasks = [clients.every(1.2 if kind == "timed" else 1.0)]
    await asyncio.gather(*tasks)
    return {"counts": dict(clients.counts), "times_s": clients.times_s}


def main(argv: list[str]) -> int:
    set_nice(_NICE)
    print(json.dumps(asyncio.run(run(int(argv[0]), float(argv[1]), argv[2]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
