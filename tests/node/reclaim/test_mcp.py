# SPDX-License-Identifier: Apache-2.0
"""The command itself, asked by the SDK's own client: over stdio and over HTTP, on a simulated GPU."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from fairsched.simgpu import Workload
from tests.node.daemon.site import COMMAND, Site
from tests.support import end_child

pytest.importorskip("mcp")
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

LOAD = Workload("decode", gap_us=5000, alloc_bytes=2 << 30)
TOKEN = "t" * 40


def env_of(site: Site) -> dict[str, str]:
    return {**site.env(), "FAIRSCHED_CONFIG": str(site.config_path)}


async def reclaim(client: Client, pid: int) -> dict[str, Any]:
    plan = (await client.call_tool("plan_reclaim", {"pids": [pid], "reason": "a test"})).structured_content
    assert isinstance(plan, dict) and plan["pids"] == [pid], plan
    asked = {"plan_id": plan["plan_id"], "pids": [pid]}
    done = (await client.call_tool("confirm_reclaim", asked)).structured_content
    assert isinstance(done, dict)
    return done


def test_over_stdio_a_process_is_ended_after_two_steps(site: Site) -> None:
    worker, other = site.spawn("chat", LOAD), site.spawn("batch", LOAD)

    async def run() -> None:
        command = [*COMMAND, "mcp", "--allow-reclaim"]
        server = StdioServerParameters(command=command[0], args=command[1:], env=env_of(site))
        async with Client(server) as client:
            found = (await client.call_tool("list_gpu_processes", {"tenant": "chat"})).structured_content
            assert [one["pid"] for one in found["processes"]] == [worker.pid]
            done = await reclaim(client, worker.pid)
            assert done["is_whole"] and done["gpus"][0]["is_free"], done

    anyio.run(run)
    worker.process.wait(30)
    assert other.is_running
    verdict = site.cli("audit", "verify", env=env_of(site))
    assert verdict.stdout.startswith("whole: 3 entries"), verdict


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


@pytest.mark.parametrize("address", ["0", "[::1]:0"])
def test_over_http_only_with_the_token_and_from_here(site: Site, tmp_path: Path, address: str) -> None:
    if address != "0" and not has_ipv6():
        pytest.skip("host: it has no IPv6")
    worker = site.spawn("chat", LOAD)
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)
    command = [*COMMAND, "mcp", "--allow-reclaim", "--http", address, "--token-file", str(file)]
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, env=env_of(site), stderr=subprocess.PIPE, text=True)
        )
        stack.callback(end_child, process)
        assert process.stderr is not None
        url = process.stderr.readline().strip()
        assert url.startswith("http://127.0.0.1:" if address == "0" else "http://[::1]:")

        async def run() -> None:
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            body = json.loads('{"jsonrpc":"2.0","id":1,"method":"ping"}')
            async with httpx2.AsyncClient() as plain:
                for headers, status in (
                    ({}, 401),
                    ({"Authorization": f"Bearer {TOKEN[:-1]}u"}, 401),
                    ({**bearer, "Host": "evil.example"}, 421),
                    ({**bearer, "Origin": "http://evil.example"}, 403),
                ):
                    said = await plain.post(url, json=body, headers=headers)
                    assert said.status_code == status, (headers, said.status_code)
            async with httpx2.AsyncClient(headers=bearer) as http:
                transport = streamable_http_client(url, http_client=http)
                async with Client(transport) as client:
                    assert (await reclaim(client, worker.pid))["is_whole"]

        anyio.run(run)
    worker.process.wait(30)


def test_a_token_that_others_can_read_is_refused(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    done = site.cli("mcp", "--http", "0", "--token-file", str(file), env=env_of(site))
    assert done.returncode == 2 and "others can read or change it" in done.stderr


def test_a_full_disk_refuses_a_confirmation_and_says_so(site: Site) -> None:
    """Its plan was written down; then somebody filled the disk."""
    worker = site.spawn("chat", LOAD)
    directory = site.state_dir / "audit"
    directory.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", directory], check=True)

    async def run() -> dict[str, Any]:
        command = [*COMMAND, "mcp", "--allow-reclaim"]
        server = StdioServerParameters(command=command[0], args=command[1:], env=env_of(site))
        async with Client(server) as client:
            plan = (await client.call_tool("plan_reclaim", {"pids": [worker.pid]})).structured_content
            assert isinstance(plan, dict) and plan["plan_id"], plan
            with contextlib.suppress(OSError), open(directory / "fill", "wb", buffering=0) as fill:
                while True:
                    fill.write(b"x" * 4096)
            asked = {"plan_id": plan["plan_id"], "pids": [worker.pid]}
            done = (await client.call_tool("confirm_reclaim", asked)).structured_content
            assert isinstance(done, dict)
            return done

    try:
        said = anyio.run(run)
        assert said["error"] == "audit_refused", said
        assert "No space left on device" in said["untrusted"]["message"]
        assert said["untrusted"]["remedy"] == "make room on its disk"
        assert worker.is_running
        assert site.cli("audit", "verify", env=env_of(site)).stdout.startswith("whole: 1 entry")
    finally:
        subprocess.run(["umount", directory], check=True)
