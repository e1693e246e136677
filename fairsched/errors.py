# SPDX-License-Identifier: Apache-2.0
"""Every error fairsched raises on purpose, and the exit status it maps to.

Each carries what a person at 3 a.m. needs: what is wrong (``str(error)``), where (path, key) and
``remedy``, one sentence that says what to do next. The CLI prints both and exits with
``exit_status``: 1 failed, 2 usage or configuration, 3 this host cannot. A command on several hosts (``--host``) has
one more, SOME_HOSTS_FAILED: some of them did not answer ok.
"""

from __future__ import annotations

import os

SOME_HOSTS_FAILED = 4
"""Exit status of a command on several hosts: some answered ok, some did not."""


class FairschedError(Exception):
    """Base of all errors fairsched raises on purpose."""

    exit_status = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy

    def with_remedy(self) -> str:
        """Both, where there is one line for it."""
        return f"{self} ({self.remedy})" if self.remedy else str(self)


class ConfigError(FairschedError):
    """The configuration is wrong: names the file, the key and the remedy."""

    exit_status = 2

    def __init__(self, message: str, *, file: str = "", key: str = "", remedy: str = "") -> None:
        where = ": ".join(part for part in (file, key) if part)
        super().__init__(f"{where}: {message}" if where else message, remedy=remedy)
        self.file = file
        self.key = key


class HostUnsupported(FairschedError):
    """This host lacks something fairsched cannot do without."""

    exit_status = 3


class KernelRefused(FairschedError):
    """The kernel refused an operation on a file; keeps the path and errno."""

    def __init__(self, path: str, errno: int, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{path}: {what}: {os.strerror(errno)}", remedy=remedy)
        self.path = path
        self.errno = errno


class CgroupGone(FairschedError):
    """The cgroup was removed while it was looked at. Data, not a fault: callers forget the tenant."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the cgroup is gone")
        self.path = path


class ControlError(FairschedError):
    """The daemon's control socket refused a request or could not be reached."""
