# SPDX-License-Identifier: Apache-2.0
"""Who may ask is what the kernel says of the peer, whatever the mode of the socket lets through."""

from __future__ import annotations

import grp
import subprocess
import sys

from tests.node.daemon.site import Site

NOBODY = 65534
# Arguments: the socket's directory, then groups. Looked up from inside: those above it are closed to others in a test.
AS_NOBODY = f"""
import os, sys
from pathlib import Path
from fairsched.protocol.client import ControlClient
from fairsched.errors import ControlError
os.chdir(sys.argv[1])
os.setgroups([int(gid) for gid in sys.argv[2:]]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    print(ControlClient(Path("fairsched.sock"), timeout_s=60).request("ping")["pid"])
except ControlError as error:
    print(error, error.remedy, sep="; ")
"""
JOIN = "use sudo, or join the fairsched group"


def ask_as_nobody(site: Site, *gids: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(site.run_dir), *map(str, gids)],
        env=site.env(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_strangers_are_refused_and_members_of_the_group_are_answered(site: Site) -> None:
    group = next(one for one in grp.getgrall() if one.gr_gid not in (0, NOBODY))
    site.configure({"chat": {}}, control={"group": group.gr_name}, mechanisms={"ebpf": "off"})
    site.start()
    site.run_dir.chmod(0o755)
    assert ask_as_nobody(site) == f"no permission to use fairsched.sock; {JOIN}"
    assert ask_as_nobody(site, group.gr_gid) == str(site.pid)
    site.socket_path.chmod(0o666)
    assert ask_as_nobody(site) == f"uid {NOBODY} may not talk to fairsched; {JOIN}"
    assert ask_as_nobody(site, group.gr_gid) == str(site.pid)
    assert site.ping() == site.pid
