# SPDX-License-Identifier: Apache-2.0
"""A decision in systemd's journal, by a real journald: found by its fields."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
JOURNALD = Path("/lib/systemd/systemd-journald")

INSIDE = f"""
mount -t tmpfs journal /run && mkdir -p /run/systemd/journal /run/log/journal
{JOURNALD} &
trap "kill $!; wait $!" EXIT
until [ -S /run/systemd/journal/socket ] && [ -S /run/systemd/journal/stdout ]; do read -rt 0.05 < <(:) || :; done
cd {ROOT} && {sys.executable} -c "$PROGRAM" || exit 1
until journalctl -D /run/log/journal -q -o cat | grep -q plain; do :; done
journalctl -D /run/log/journal -q FAIRSCHED_TENANT=batch -o json
"""
PROGRAM = """
import logging, os, socket
from fairsched.base import logs
from fairsched.protocol.events import decision_fields, logfmt
from tests.unit.protocol.fakes import hold

stream = socket.socket(socket.AF_UNIX)  # stderr of a unit, as systemd makes it
stream.connect("/run/systemd/journal/stdout")
stream.sendall(b"fairsched\\n\\n6\\n0\\n0\\n0\\n0\\n")
os.dup2(stream.fileno(), 2)
stat = os.fstat(2)
os.environ["JOURNAL_STREAM"] = f"{stat.st_dev}:{stat.st_ino}"
logs.set_up_logging("logfmt", "info")
fields = decision_fields(hold(error="two\\nlines"))
logger = logging.getLogger("fairsched.act.holds")
logger.info("%s", logfmt(fields), extra={"fields": fields})
logger.info("plain")
"""


@pytest.mark.skipif(
    not JOURNALD.exists(),
    reason="no systemd-journald: sudo make setup (FAIRSCHED_REQUIRE_NODE=1 makes this a failure)",
)
def test_a_decision_is_found_by_its_tenant() -> None:
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "bash", "-c", INSIDE],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PROGRAM": PROGRAM},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    entry = json.loads(line)
    assert entry["FAIRSCHED_DECISION"] == "hold"
    assert entry["FAIRSCHED_LAG_MS"] == "-62.0"
    assert entry["FAIRSCHED_ERROR"] == "two\nlines"
    assert (entry["PRIORITY"], entry["SYSLOG_IDENTIFIER"]) == ("6", "fairsched")
    assert entry["MESSAGE"].startswith("level=info from=act.holds decision=hold tenant=batch")
