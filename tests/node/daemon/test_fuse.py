# SPDX-License-Identifier: Apache-2.0
"""A libcuda on a file system that a tenant serves itself, and that does not answer when it likes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node import fuse
from tests.node.daemon.site import DECODE, PATIENCE_S, Site, logged
from tests.node.daemon.test_names import MAP
from tests.support import wait_until

LIBRARY = "libcuda.so.1"

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no FUSE here: modprobe fuse")


class Mapped:
    """A process of ``bad`` that has a libcuda mapped, and its server."""

    def __init__(self, site: Site, library: Path, silent: Path) -> None:
        self._silent = silent
        self.process = subprocess.Popen([sys.executable, "-c", MAP, str(library)], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"\n"
        (site.cgroup("bad") / "cgroup.procs").write_text(str(self.process.pid))

    def fall_silent(self) -> None:
        self._silent.touch()


@pytest.fixture
def served(site: Site) -> Iterator[Mapped]:
    site.configure({"bad": {}, "good": {}})
    with tempfile.TemporaryDirectory(prefix="fairsched-test-fuse.") as name:
        directory, silent = Path(name) / "mnt", Path(name) / "silent"
        directory.mkdir()
        # Whoever has one of its files open ends only once its server has: killed, unmounted, and then waited for.
        with (
            contextlib.ExitStack() as ended,
            fuse.mounted(directory, LIBRARY, site.library_dir / LIBRARY, silent) as library,
        ):
            found = Mapped(site, library, silent)
            ended.callback(found.process.communicate)
            try:
                yield found
            finally:
                found.process.kill()


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_libcuda_that_its_user_serves_himself_gets_no_probes_and_nobody_asks_its_server(
    site: Site, served: Mapped, is_silent: bool
) -> None:
    if is_silent:
        served.fall_silent()  # whoever asks it for anything from here on waits until the server has ended
    site.start()
    wait_until(
        lambda: logged(site.log(), "library=.* probes=0 error=.*FUSE"), PATIENCE_S, "it is refused, and said"
    )
    site.spawn("good", DECODE)
    ours = f"library=.*{site.library_dir.name}.* probes=[1-9]"
    wait_until(lambda: bool(logged(site.log(), ours)), PATIENCE_S, "another's has them")
    wait_until(lambda: site.gpu_time_s("good") > 0, PATIENCE_S, "and its time is accounted")
    assert site.stop() == 0
    wait_until(lambda: not site.helpers_left(), PATIENCE_S, "nobody of ours hangs with it")
    assert served.process.poll() is None
