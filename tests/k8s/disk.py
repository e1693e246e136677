# SPDX-License-Identifier: Apache-2.0
"""Writes a disk with containerd's files in which the images of the tests lie: ``python -m tests.k8s.disk FILE``.

To unpack them takes a guest with emulated processors five minutes, and this machine some seconds. A containerd of
this moment does it in a mount namespace of its own, as the one of the guest would.
Exit: 0 written, 1 failed, with the reason.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.k8s.places import BIN, CACHE, write_image
from tests.k8s.release import load_builder

SIZE = "4G"
"""Of a file with holes."""
CONFIG = """version = 3
root = "{top}/root"
state = "{top}/state"
disabled_plugins = ["io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"]
[grpc]
  address = "{top}/socket"
"""
IMPORT = r"""
set -e
{bin}/containerd --config {top}/config.toml >{top}/log 2>&1 &
until {bin}/ctr -a {top}/socket version >{top}/version 2>&1; do kill -0 $! || {{ cat {top}/log; exit 1; }}; done
for image in {top}/*.tar; do {bin}/ctr -a {top}/socket -n k8s.io images import --snapshotter overlayfs "$image"; done
kill $!
wait $! || true
"""


def write_disk(disk: Path) -> None:
    """Raises CalledProcessError, with what was said."""
    builder: Any = load_builder()
    with tempfile.TemporaryDirectory(prefix="fairsched-disk.", dir=disk.parent) as directory:
        top = Path(directory)
        write_image(top / "busybox.tar")
        builder.build(top / "agent.tar", builder.NAME, CACHE / f"image-base-{builder.base_key()}.tar")
        (top / "config.toml").write_text(CONFIG.format(top=top))
        script = IMPORT.format(top=top, bin=BIN)
        run("unshare", "--mount", "--propagation", "private", "bash", "-c", script)
        run("mkfs.ext4", "-q", "-d", str(top / "root"), str(disk), SIZE)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def main() -> int:
    try:
        write_disk(Path(sys.argv[1]))
    except subprocess.CalledProcessError as error:
        print(f"{error}: {error.stdout}{error.stderr}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
