# SPDX-License-Identifier: Apache-2.0
"""``fairsched mcp`` before any protocol is spoken: what is not installed, and what cannot be meant."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from fairsched.cli import cli
from fairsched.cli.mcp import address_of

RUN = "import sys; sys.modules[{missing!r}] = None; from fairsched.cli import main; main()"


@pytest.mark.parametrize("missing", ["mcp", "mcp_types", "anyio", "uvicorn", "starlette"])
def test_without_the_sdk_it_says_how_to_get_it(missing: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(missing=missing), "mcp"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 3, done.stderr
    assert "the SDK of the Model Context Protocol is not installed" in done.stderr
    assert "remedy: pip install 'fairsched[mcp]'" in done.stderr
    assert done.stdout == "", "which is the protocol's"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--allow-force"], "--allow-force needs --allow-reclaim"),
        (["--http", "8765"], "--http needs --token-file"),
        (["--token-file", "x"], "--token-file is for --http"),
        (["--http", "0.0.0.0:1", "--token-file", "x"], "is not PORT, 127.0.0.1:PORT or [::1]:PORT"),
        (["--http", "65536", "--token-file", "x"], "is not PORT"),
    ],
)
def test_what_cannot_be_meant(words: list[str], said: str) -> None:
    done = CliRunner().invoke(cli, ["mcp", *words])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_addresses() -> None:
    assert address_of("8765") == ("127.0.0.1", 8765)
    assert address_of("127.0.0.1:1") == ("127.0.0.1", 1)
    assert address_of("[::1]:0") == ("::1", 0)
