# SPDX-License-Identifier: Apache-2.0
"""Files that people ask for: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A scratch file that takes the place of ``path``: never half a file, never through somebody's link."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(fd)
    scratch = Path(name)
    try:
        yield scratch
        # Written as root: the file belongs to whom its directory belongs, as after every `sudo make`.
        owner = path.parent.stat()
        os.chown(scratch, owner.st_uid, owner.st_gid)
        scratch.chmod(0o644)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
