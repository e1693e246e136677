# SPDX-License-Identifier: Apache-2.0
"""Calls that end on two processors at the same moment, and what a hostile program can do to the books with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.node.driver.conftest import Site

HAMMER = Path(__file__).with_name("hammer.c")


def test_what_is_freed_while_others_allocate_below_it_leaves_nothing(site: Site, tmp_path: Path) -> None:
    program = tmp_path / "hammer"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-o", str(program), str(HAMMER), "-lpthread"]
    subprocess.run(command, check=True, timeout=240)
    node = site.host.state_dir / "dev/nvidiactl"
    with subprocess.Popen(
        [str(program), str(node), "3", "20000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "done\n"
            client = next(one for one in site.probe.clients() if one.tgid == process.pid)
            held = [(part.vram_bytes, part.contexts) for part in client.held]
            assert held == [(0, 0)] * len(held)
        finally:
            process.kill()
    assert (process.pid, 0) not in site.seen()
    counts = site.unexpected()
    assert set(counts) <= {"unseen", "replaced"}, counts
