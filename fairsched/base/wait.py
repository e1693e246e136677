# SPDX-License-Identifier: Apache-2.0
"""Waits until one of a few descriptors is readable.

select.select refuses descriptors from 1024 on (FD_SETSIZE). On a node of a thousand tenants, each with a descriptor
or two in the daemon, whatever is opened later has such a one; hence poll. The linter bans the other.
"""

from __future__ import annotations

import errno
import math
import os
import select
from collections.abc import Sequence
from typing import Protocol, TypeVar


class _WithDescriptor(Protocol):
    def fileno(self) -> int: ...


_Source = TypeVar("_Source", bound="int | _WithDescriptor")


def wait_readable(sources: Sequence[_Source], timeout_s: float | None) -> list[_Source]:
    """Those of ``sources`` that can be read, or are at their end; none once ``timeout_s`` is over (None: waits on).

    Raises OSError for a descriptor that is closed already.
    """
    poll = select.poll()
    by_fd = {one if isinstance(one, int) else one.fileno(): one for one in sources}
    for fd in by_fd:
        poll.register(fd, select.POLLIN)
    found = poll.poll(None if timeout_s is None else max(0, math.ceil(timeout_s * 1000)))
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return [by_fd[fd] for fd, _ in found]


def is_readable(source: int | _WithDescriptor, timeout_s: float = 0.0) -> bool:
    """Whether it is by the end of ``timeout_s``, without a timeout now; see :func:`wait_readable`."""
    return bool(wait_readable([source], timeout_s))
