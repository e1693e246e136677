# SPDX-License-Identifier: Apache-2.0
"""Attaches device programs to cgroups: ours beside those of others, found again, taken away.

A cgroup may carry many device programs (systemd's, the container runtime's, ours); an open must pass all of them, also
those of the cgroups above. Only the program we name is ever touched. It is attached without a link and without a pin,
so it outlives us, and the next daemon finds it by asking the kernel.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Collection

from fairsched.bpf import objects
from fairsched.cgroup import tree
from fairsched.cgroup.path import CgroupRef, Mount
from fairsched.errors import CgroupGone, KernelRefused


def attach(ref: CgroupRef, prog_fd: int) -> bool:
    """Attach beside what others have attached; False when it was there. Raises CgroupGone, KernelRefused."""
    try:
        objects.attach(ref.fileno(), prog_fd)
    except OSError as error:
        if error.errno == errno.EINVAL:  # the kernel's word for: the same program twice
            return False
        raise _explain(ref, error, "cannot attach a device program") from error
    return True


def replace(ref: CgroupRef, prog_fd: int, old_fd: int) -> bool:
    """Attach in the place of another program, with no gap; False when that one is not there or we are already.

    Raises CgroupGone, KernelRefused.
    """
    try:
        objects.attach(ref.fileno(), prog_fd, replaces=old_fd)
    except OSError as error:
        if error.errno == errno.EINVAL or (error.errno == errno.ENOENT and ref.is_alive()):
            return False
        raise _explain(ref, error, "cannot replace a device program") from error
    return True


def detach(ref: CgroupRef, prog_fd: int) -> bool:
    """Detach this program; False when it was not there. Raises KernelRefused."""
    try:
        objects.detach(ref.fileno(), prog_fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        refused = _explain(ref, error, "cannot detach a device program")
        if isinstance(refused, CgroupGone):
            return False  # its programs went with it
        raise refused from error
    return True


def attached(ref: CgroupRef) -> list[int]:
    """Ids of the device programs on this very cgroup, in the order in which they run. Raises as :func:`attach`.

    Older kernels (6.1 is one) want CAP_NET_ADMIN for this question, and for none of the other calls.
    """
    try:
        return objects.attached(ref.fileno())
    except OSError as error:
        raise _explain(ref, error, "cannot ask for device programs") from error


def detach_everywhere(mount: Mount, prog_fds: Collection[int], *, keep: Collection[int] = ()) -> list[str]:
    """Detach these programs from every cgroup but those with the ids ``keep``; returns where they were.

    Raises KernelRefused.
    """
    found = []
    for path in ["/", *(node.path for node in tree.walk(mount))] if prog_fds else []:
        with contextlib.suppress(CgroupGone), CgroupRef.open(mount, path) as ref:
            if ref.id not in keep and any([detach(ref, fd) for fd in prog_fds]):
                found.append(path)
    return found


def _explain(ref: CgroupRef, error: OSError, what: str) -> CgroupGone | KernelRefused:
    if error.errno in (errno.ENODEV, errno.ENOENT) or not ref.is_alive():
        return CgroupGone(ref.path)
    remedy = ""
    if error.errno == errno.EPERM:
        remedy = (
            "needs CAP_NET_ADMIN or CAP_SYS_ADMIN; or somebody attached a device program here or above "
            "without BPF_F_ALLOW_MULTI (bpftool cgroup show)"
        )
    elif error.errno == errno.E2BIG:
        remedy = "too many device programs here: bpftool cgroup show"
    return KernelRefused(ref.path, error.errno or 0, what, remedy=remedy)
