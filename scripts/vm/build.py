# SPDX-License-Identifier: Apache-2.0
"""Builds the test driver for a kernel, inside the tree that scripts/vm/kernel made: both variants, once per source.

What was built lies under a name made of the sources: several checkouts may share the cache, at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

VARIANTS = {"595": "", "535": "-DFRONTEND"}
"""Variant -> compiler flags: from 545 on the driver's functions have other names."""
KEPT = 12
"""Builds that stay in the cache of a kernel."""


def digest(source: Path) -> str:
    files = sorted(one for one in source.iterdir() if one.is_file())
    parts = [Path(__file__).read_bytes(), *(one.name.encode() + one.read_bytes() for one in files)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def modules(home: Path, source: Path) -> Path | None:
    """The directory with ``VARIANT/nvidia.ko``, made from ``source``; None after saying what went wrong."""
    builds = home / "builds"
    target = builds / digest(source)
    builds.mkdir(exist_ok=True)
    with open(builds / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            target.touch()
            return target
        unfinished = builds / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        for variant, flags in VARIANTS.items():
            work = home / "root/module" / variant
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(source, work)
            error = _make(home, variant, flags)
            if error:
                print(f"vm: building tests/vm/module failed (variant {variant}):\n{error}", file=sys.stderr)
                return None
            (unfinished / variant).mkdir(parents=True)
            shutil.copy(work / "nvidia.ko", unfinished / variant)
        unfinished.rename(target)
        done = sorted((one for one in builds.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
        for old in done[:-KEPT]:
            shutil.rmtree(old)
    return target


def _make(home: Path, variant: str, flags: str) -> str | None:
    """Run the kernel's build in the tree. What it said, if it failed or warned."""
    release = (home / "release").read_text().strip()
    make = f"make -C /lib/modules/{release}/build M=/module/{variant} KCFLAGS='{flags} -Werror' modules"
    # The compiler wants /dev/null and little else; a mount namespace of its own leaves nothing behind.
    script = 'mount --bind /dev "$1/dev" && mount -t proc proc "$1/proc" && exec chroot "$1" /bin/sh -c "$2"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", home / "root", make],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        text=True,
    )
    return done.stdout[-4000:] if done.returncode else None
