# SPDX-License-Identifier: Apache-2.0
"""10,000 messages of any kind, on the wire: none ends anybody, and the server answers the last one."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from typing import Any

import anyio
from mcp.server.stdio import stdio_server

from tests.unit.reclaim.mcp.fake import EVIL, FakeHost

COUNT = 10_000
TOOLS = [
    "list_gpu_processes",
    "gpu_status",
    "explain_tenant",
    "audit_entries",
    "plan_reclaim",
    "confirm_reclaim",
]
METHODS = [
    "tools/list", "ping", "initialize", "resources/read", "server/discover", "notifications/cancelled", "", EVIL
]  # fmt: skip
KEYS = [
    "pids",
    "plan_id",
    "tenant",
    "filter",
    "gpu",
    "force",
    "limit",
    "last",
    "start_ticks",
    "grace_s",
    EVIL,
]


def value(dice: random.Random, depth: int = 0) -> Any:
    made: list[Callable[[], Any]] = [
        lambda: None,
        lambda: dice.choice([True, False, 0, -1, 10, 20, 2**63, 10**400, 1e308, -0.5]),
        lambda: dice.choice(
            [EVIL, "", "\x00", "0", "10", "user=ann", "vram>1G", "name~(a+)+$", "'", "x" * 5000]
        ),
        lambda: [value(dice, depth + 1) for _ in range(dice.randrange(4))],
        lambda: {dice.choice(KEYS): value(dice, depth + 1) for _ in range(dice.randrange(4))},
    ]
    return dice.choice(made[:3] if depth > 3 else made)()


def message(dice: random.Random, number: int) -> str:
    kind = dice.randrange(10)
    if kind == 0:
        return "".join(
            chr(dice.choice([0, 9, 34, 91, 123, 125, 0x202E, 65])) for _ in range(dice.randrange(200))
        )
    if kind == 1:
        return dice.choice(["[" * 20_000, '{"a":' * 5_000, '"' + "x" * 200_000 + '"', "[]", "null", "{}"])
    if kind == 2:
        return json.dumps(value(dice))
    if kind == 3:
        odd = {
            "jsonrpc": dice.choice(["2.0", "1.0", None]),
            "id": value(dice),
            "method": dice.choice(METHODS),
        }
        return json.dumps({**odd, "params": value(dice)})
    if kind == 4:
        return json.dumps({"jsonrpc": "2.0", "method": dice.choice(METHODS), "params": value(dice)})
    arguments: Any = {dice.choice(KEYS): value(dice) for _ in range(dice.randrange(4))}
    if kind > 7:
        arguments = {
            "plan_id": "".join(dice.choices("abAB01-_", k=32)),
            "pids": dice.choice([[10], [10, 20]]),
        }
    name = "confirm_reclaim" if kind > 7 else dice.choice([*TOOLS, EVIL])
    return json.dumps(
        {
            "jsonrpc": "2.0",
            "id": number,
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments},
        }
    )


def test_no_message_ends_anybody_and_none_stops_the_server(host: FakeHost, make: Callable[..., Any]) -> None:
    dice = random.Random(20)
    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": EVIL, "version": "1"},
    }
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}),
        '{"jsonrpc":"2.0","method":"notifications/initialized"}',
        *(message(dice, number).replace("\n", " ") for number in range(1, COUNT + 1)),
    ]
    said: list[dict[str, Any]] = []
    done = anyio.Event()

    class Sink(io.StringIO):
        def write(self, text: str) -> int:
            said.append(json.loads(text))
            if said[-1].get("id") == "last":
                anyio.from_thread.run_sync(done.set)
            return len(text)

    class Wire:
        """Its end comes when the last answer was seen."""

        def __aiter__(self) -> Wire:
            self._lines = iter(lines)
            return self

        async def __anext__(self) -> str:
            for line in self._lines:
                await anyio.lowlevel.checkpoint()
                return line
            if not self.is_asked:
                self.is_asked = True
                return '{"jsonrpc":"2.0","id":"last","method":"tools/list"}'
            with anyio.fail_after(120):
                await done.wait()
            raise StopAsyncIteration

        is_asked = False

    async def run() -> None:
        nonlocal done
        done = anyio.Event()
        server = make(may_force=True)
        async with stdio_server(Wire(), anyio.wrap_file(Sink())) as (read, write):  # type: ignore[arg-type]
            await server.run(read, write, server.create_initialization_options())

    anyio.run(run)
    assert host.acts == []
    tools = next(one for one in said if one.get("id") == "last")["result"]["tools"]
    assert len(tools) == len(TOOLS)
    codes = {
        one["result"]["structuredContent"].get("error") for one in said if "content" in one.get("result", {})
    }
    assert {"unknown_plan", "bad_arguments", "no_such_tool"} <= codes
    assert "internal_error" not in codes
