# SPDX-License-Identifier: Apache-2.0
"""inotify, just enough to learn that somebody wrote a cgroup.freeze file.

The file says that a cgroup is paused but not by whom, and a second "1" over the first changes nothing
that can be read. kernfs reports every write(2) to inotify, also one that changes nothing (verified by
``probe.probe_host``), so writes that were not ours can be counted.

inotify merges an event into the newest unread one when both are equal. Whoever tells its own writes
from those of others must therefore read the queue right before and right after its own write.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from fairsched.errors import HostUnsupported

IN_MODIFY = 0x0002
IN_CLOSE_WRITE = 0x0008
IN_MOVED_TO = 0x0080
IN_CREATE = 0x0100
IN_DELETE_SELF = 0x0400

_EVENT = struct.Struct("iIII")
_READ_SIZE = 4096
_LONGEST_EVENT = _EVENT.size + 256
"""With the longest name and its end."""


class Watch:
    """An inotify instance. Pollable through :meth:`fileno`; reads never block."""

    def __init__(self) -> None:
        """Raises HostUnsupported when the limit of instances (fs.inotify.max_user_instances) is reached."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise HostUnsupported(
                f"cannot create an inotify instance: {os.strerror(ctypes.get_errno())}",
                remedy="raise fs.inotify.max_user_instances",
            )

    def fileno(self) -> int:
        return self._fd

    def add(self, fd: int, mask: int) -> int:
        """Watch the file or directory that ``fd`` is open on; the returned number appears in events.

        Raises HostUnsupported when the limit of watches (fs.inotify.max_user_watches) is reached and
        FileNotFoundError when the file is gone.
        """
        path = f"/proc/self/fd/{fd}".encode()
        number: int = self._libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(mask))
        if number < 0:
            code = ctypes.get_errno()
            if code == errno.ENOENT:
                raise FileNotFoundError(code, os.strerror(code))
            raise HostUnsupported(
                f"cannot watch a file with inotify: {os.strerror(code)}",
                remedy="raise fs.inotify.max_user_watches",
            )
        return number

    def remove(self, number: int) -> None:
        """Stop watching; harmless when the kernel has dropped the watch already."""
        self._libc.inotify_rm_watch(self._fd, number)

    def read(self) -> list[tuple[int, int]]:
        """(watch number, event mask) of everything that happened since the last read, oldest first."""
        events: list[tuple[int, int]] = []
        is_more = True
        while is_more:
            try:
                data = os.read(self._fd, _READ_SIZE)
            except BlockingIOError:
                break
            # The kernel gives all that fits; asking once more would be an error as a rule, and those are dear.
            is_more = len(data) > _READ_SIZE - _LONGEST_EVENT
            offset = 0
            while offset < len(data):
                number, mask, _cookie, name_bytes = _EVENT.unpack_from(data, offset)
                events.append((number, mask))
                offset += _EVENT.size + name_bytes
        return events

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
