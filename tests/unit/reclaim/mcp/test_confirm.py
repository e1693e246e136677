# SPDX-License-Identifier: Apache-2.0
"""Two steps, through the SDK's own client in memory: who is ended, when, and by whom that may be confirmed."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from fairsched.base.printable import printable
from fairsched.reclaim.audit import Audit
from fairsched.reclaim.mcp import plans as plans_module
from fairsched.reclaim.mcp.plans import EXPIRY_S, MOST, PER_MINUTE, digest_of
from tests.unit.reclaim.made import process
from tests.unit.reclaim.mcp.conftest import Clock
from tests.unit.reclaim.mcp.fake import EVIL, FakeHost

Body = Callable[[Client], Awaitable[None]]
READING = {"list_gpu_processes", "gpu_status", "explain_tenant", "audit_entries", "plan_reclaim"}


def play(server: Any, *bodies: Body, mode: str = "legacy") -> None:
    """Each body with a client of its own; all are connected while the first one runs."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(server, mode=mode)) for _ in bodies]
            for body, client in zip(bodies, clients, strict=True):
                await body(client)

    anyio.run(run)


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    found = (await client.call_tool(tool, arguments)).structured_content
    assert isinstance(found, dict)
    return found


async def plan(client: Client, **arguments: Any) -> dict[str, Any]:
    found = await call(client, "plan_reclaim", **(arguments or {"pids": [10]}))
    assert found.get("plan_id"), found
    return found


async def confirm(client: Client, of: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return await call(client, "confirm_reclaim", **{"plan_id": of["plan_id"], "pids": of["pids"], **changes})


def events(host: FakeHost) -> list[str]:
    return [entry["event"] for entry in Audit(host.audit_directory).entries()]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_plan_does_nothing_and_its_confirmation_ends_just_that(
    host: FakeHost, make: Callable[..., Any], mode: str
) -> None:
    async def body(client: Client) -> None:
        found = await plan(client, pids=[10], reason="a test")
        assert (found["pids"], host.acts, found["is_done"]) == ([10], [], False)
        assert found["targets"][0]["start_ticks"] == 110
        done = await confirm(client, found)
        assert (done["is_done"], host.acts) == (True, [([10], False)])
        assert done["processes"][0]["fate"] == "ended"

    play(make(), body, mode=mode)
    entries = list(Audit(host.audit_directory).entries())
    assert [entry["event"] for entry in entries] == ["plan", "reclaim", "outcome"]
    assert {entry["via"] for entry in entries} == {"mcp"}
    assert all(entry["claims_client"].startswith("mcp") for entry in entries)
    assert len({entry["plan"] for entry in entries}) == 1
    assert (entries[0]["why"], entries[0]["asked"]) == ("a test", "'pids=[10]'")
    assert all(pin.is_closed for pin in host.pins)


def test_without_being_enabled_there_is_no_tool_that_acts(host: FakeHost, make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == READING
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
        found = await call(client, "plan_reclaim", pids=[10])
        assert found["plan_id"] is None and found["pids"] == [10]
        assert "only reads" in found["note"]
        said = await call(client, "confirm_reclaim", plan_id="x", pids=[10])
        assert said["error"] == "no_such_tool"

    play(make(may_act=False), body)
    assert host.acts == [] and not host.audit_directory.exists()


def test_the_acting_tool_says_so_and_force_is_there_only_when_allowed(make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READING | {"confirm_reclaim"}
        notes = tools["confirm_reclaim"].annotations
        assert notes is not None and notes.destructive_hint and not notes.read_only_hint
        assert "force" not in tools["plan_reclaim"].input_schema["properties"]
        said = await call(client, "plan_reclaim", pids=[10], force=True)
        assert said["error"] == "bad_arguments"

    play(make(), body)


def test_force_goes_from_the_plan_to_the_act(host: FakeHost, make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        await confirm(client, await plan(client, pids=[10], force=True))

    play(make(may_force=True), body)
    assert host.acts == [([10], True)]


def test_an_id_is_good_once(host: FakeHost, make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        found = await plan(client)
        await confirm(client, found)
        assert (await confirm(client, found))["error"] == "unknown_plan"

    play(make(), body)
    assert host.acts == [([10], False)]
    assert events(host)[-1] == "refused"


def test_an_id_expires(host: FakeHost, make: Callable[..., Any], clock: Clock) -> None:
    async def body(client: Client) -> None:
        found = await plan(client)
        assert found["expires_in_s"] == EXPIRY_S
        clock.now_s += EXPIRY_S
        assert (await confirm(client, found))["error"] == "unknown_plan"
        found = await plan(client)
        clock.now_s += EXPIRY_S - 1
        assert (await confirm(client, found))["is_done"]

    play(make(), body)
    assert host.acts == [([10], False)]
    assert all(pin.is_closed for pin in host.pins)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_an_id_of_another_session_does_not_exist_and_stays_good_in_its_own(
    host: FakeHost, make: Callable[..., Any], mode: str
) -> None:
    found: list[dict[str, Any]] = []

    async def owner(client: Client) -> None:
        found.append(await plan(client))

    async def stranger(client: Client) -> None:
        assert (await confirm(client, found[0]))["error"] == "unknown_plan"
        assert host.acts == []

    async def run() -> None:
        server = make()
        async with Client(server, mode=mode) as one, Client(server, mode=mode) as two:
            await owner(one)
            await stranger(two)
            assert (await confirm(one, found[0]))["is_done"]

    anyio.run(run)
    assert host.acts == [([10], False)]


def test_plans_end_with_their_session(host: FakeHost, make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        await plan(client)
        assert not all(pin.is_closed for pin in host.pins)

    play(make(), body)
    assert host.pins and all(pin.is_closed for pin in host.pins)


def test_other_pids_than_the_plan_has_use_it_up(host: FakeHost, make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        for pids in ([20], [10, 20], [11]):
            found = await plan(client)
            assert (await confirm(client, found, pids=pids))["error"] == "other_pids"
            assert (await confirm(client, found))["error"] == "unknown_plan"

    play(make(), body)
    assert host.acts == []


def test_nobody_is_added_to_a_plan(host: FakeHost, make: Callable[..., Any]) -> None:
    """A child that was forked since; a new holder that the same words mean; the same pid, of another process."""

    async def body(client: Client) -> None:
        found = await plan(client, gpu="0")
        host.table[30] = process(30, 10)
        said = await confirm(client, found)
        assert said["error"] == "changed" and "[30]" in said["untrusted"]["message"]
        found = await plan(client, gpu="0")
        host.table[40] = process(40)
        assert (await confirm(client, found))["error"] == "changed"
        found = await plan(client, pids=[10])
        host.table[10] = replace(host.table[10], start_ticks=999)
        host.pins[-1].is_over = True
        assert (await confirm(client, found))["error"] == "changed"

    play(make(), body)
    assert host.acts == []


def test_who_is_no_longer_meant_is_not_ended(host: FakeHost, make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        found = await plan(client, name_contains="train")
        host.table[10] = replace(host.table[10], command="serve")
        assert (await confirm(client, found))["error"] == "changed"

    play(make(), body)
    assert host.acts == []


def test_who_has_ended_since_is_told_and_the_others_are_ended(
    host: FakeHost, make: Callable[..., Any]
) -> None:
    async def body(client: Client) -> None:
        found = await plan(client, gpu="0")
        next(pin for pin in host.pins if pin.pid == 20).is_over = True
        done = await confirm(client, found)
        assert done["ended_before"] == [20]
        found = await plan(client, pids=[10])
        host.pins[-1].is_over = True
        del host.table[10]
        done = await confirm(client, found)
        assert (done["is_done"], done["ended_before"]) == (False, [10])

    play(make(), body)
    assert host.acts == [([10], False)], "a pid whose pin is over is never acted on, whoever has it now"


def test_two_acts_do_not_run_at_once_and_reading_goes_on(host: FakeHost, make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        one, two = await plan(client, pids=[10]), await plan(client, pids=[20])
        host.is_open.clear()
        async with anyio.create_task_group() as group:
            group.start_soon(confirm, client, one)
            await anyio.to_thread.run_sync(host.begun.wait, 30)
            assert (await confirm(client, two))["error"] == "busy"
            assert (await call(client, "list_gpu_processes"))["total"] == 2
            host.is_open.set()
        assert (await confirm(client, two))["is_done"], "busy does not use a plan up"

    play(make(), body)
    assert host.acts == [([10], False), ([20], False)]


def test_an_act_whose_caller_gives_up_is_finished_and_written_down(
    host: FakeHost, make: Callable[..., Any]
) -> None:
    async def body(client: Client) -> None:
        found = await plan(client)
        host.is_open.clear()
        with anyio.move_on_after(10) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(confirm, client, found)
                await anyio.to_thread.run_sync(host.begun.wait, 30)
                group.cancel_scope.cancel()
        assert not scope.cancelled_caught
        host.is_open.set()

    play(make(), body)
    assert (host.acts, events(host)) == ([([10], False)], ["plan", "reclaim", "outcome"])


def test_a_log_that_cannot_be_written_refuses_plans_and_acts(
    host: FakeHost, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(client: Client) -> None:
        found = await plan(client)
        with monkeypatch.context() as patch:
            patch.setattr(Audit, "_append", _no_space)
            assert (await call(client, "plan_reclaim", pids=[10]))["error"] == "audit_refused"
            assert (await confirm(client, found))["error"] == "audit_refused"

    play(make(), body)
    assert host.acts == [] and all(pin.is_closed for pin in host.pins)


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_ids_are_random_and_neither_kept_nor_logged(host: FakeHost, make: Callable[..., Any]) -> None:
    ids: list[str] = []

    async def body(client: Client) -> None:
        for _ in range(5):
            ids.append((await plan(client))["plan_id"])
        await call(client, "confirm_reclaim", plan_id="guessed", pids=[10])
        entries = str(await call(client, "audit_entries"))
        assert all(one not in entries for one in ids) and digest_of(ids[0])[:16] in entries

    play(make(), body)
    assert len(set(ids)) == 5 and all(len(one) == 32 for one in ids)
    raw = b"".join(path.read_bytes() for path in Path(host.audit_directory).iterdir())
    assert all(one.encode() not in raw for one in ids)


def test_plans_are_few_and_seldom(host: FakeHost, make: Callable[..., Any], clock: Clock) -> None:
    async def body(client: Client) -> None:
        found = [await plan(client) for _ in range(MOST + 1)]
        assert (await confirm(client, found[0]))["error"] == "unknown_plan"
        while (said := await call(client, "plan_reclaim", pids=[10])).get("error") is None:
            assert len(events(host)) <= PER_MINUTE
        assert said["error"] == "too_many_plans"
        for _ in range(50):
            await call(client, "confirm_reclaim", plan_id="guessed", pids=[10])
        assert len(events(host)) == PER_MINUTE, "guesses do not fill the log"
        clock.now_s += 60
        assert await plan(client)

    play(make(), body)
    assert plans_module.MOST == MOST
    assert sum(not pin.is_closed for pin in host.pins) == 0


def under(value: Any, text: str, where: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where a text is, as keys from the top."""
    if isinstance(value, dict):
        return [one for key, item in value.items() for one in under(item, text, (*where, str(key)))]
    if isinstance(value, list):
        return [one for item in value for one in under(item, text, where)]
    return [where] if isinstance(value, str) and text in value else []


def test_names_leave_below_untrusted_alone_and_cannot_steer(host: FakeHost, make: Callable[..., Any]) -> None:
    host.table[21] = process(21, 20, state="Z")
    host.table[22] = process(22, 20, cgroup=f"/other/{EVIL}")

    async def body(client: Client) -> None:
        answers = [await call(client, "list_gpu_processes"), found := await plan(client, pids=[20])]
        answers += [await confirm(client, found), await call(client, "audit_entries")]
        answers += [await call(client, "list_gpu_processes", gpu=EVIL)]
        for answer in answers:
            places = under(answer, "ignore previous instructions")
            assert all("untrusted" in where for where in places), places
            assert under(answer, "\x1b") == under(answer, "\u202e") == []
        assert printable(EVIL)[:40] in str(answers[0])
        result = await client.call_tool("list_gpu_processes", {})
        assert result.content[0].text.isascii()  # type: ignore[union-attr]

    play(make(), body)


def test_what_is_long_is_cut(host: FakeHost, make: Callable[..., Any]) -> None:
    host.table[50] = process(50, command="x" * 100_000, cgroup="/" + "y" * 100_000)

    async def body(client: Client) -> None:
        assert len(str(await call(client, "list_gpu_processes", filter="pid=50"))) < 4000

    play(make(), body)


def test_wrong_arguments_are_named_without_their_values(make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        for tool, arguments, error in (
            ("list_gpu_processes", {"limit": "secret"}, "bad_arguments"),
            ("list_gpu_processes", {"sort": "secret"}, "bad_arguments"),
            ("list_gpu_processes", {"other": "secret"}, "bad_arguments"),
            ("list_gpu_processes", {"filter": "name~(a+)+$"}, "bad_filter"),
            ("list_gpu_processes", {"filter": "'open"}, "bad_filter"),
            ("list_gpu_processes", {"vram_over": "much"}, "bad_filter"),
            ("list_gpu_processes", {"gpu": "7"}, "no_such_gpu"),
            ("plan_reclaim", {}, "nobody_named"),
            ("plan_reclaim", {"pids": [0]}, "bad_arguments"),
            ("plan_reclaim", {"pids": [10] * 1000}, "bad_arguments"),
            ("plan_reclaim", {"pids": [True]}, "bad_arguments"),
            ("confirm_reclaim", {"plan_id": "x"}, "bad_arguments"),
            ("explain_tenant", {"tenant": "chat"}, "failed"),
        ):
            result = await client.call_tool(tool, arguments)
            assert result.is_error and result.structured_content["error"] == error, (tool, arguments)
            assert "secret" not in str(result.structured_content)

    play(make(), body)


def test_a_start_time_tells_processes_apart(host: FakeHost, make: Callable[..., Any]) -> None:
    async def body(client: Client) -> None:
        found = await plan(client, pids=[10], start_ticks={"10": 110})
        assert found["pids"] == [10]
        found = await call(client, "plan_reclaim", gpu="0", start_ticks={"10": 1})
        assert found["pids"] == [20]

    play(make(), body)
