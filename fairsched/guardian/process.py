# SPDX-License-Identifier: Apache-2.0
"""The guardian: a second, tiny process that thaws everything when the daemon cannot.

It is started before the first hold and does two things until the daemon has ended:

1. It waits for the daemon's death (pidfd, so neither kill -9 nor a reused pid fools it), then thaws every
   hold on record whose daemon is dead, and exits.
2. It enforces deadlines on its own: a hold that is ``grace`` past its deadline is thawed although the
   daemon lives, because then the daemon hangs.

How it stays alive and awake: an own session (Ctrl-C of the terminal does not reach it), the root cgroup of each
hierarchy (which cannot be frozen, and whose processes are not killed with the daemon's service or container), a
low oom_score_adj and a better nice value where it is allowed to. SIGINT and SIGHUP are ignored. SIGTERM means
"leave when nothing is held": a machine that shuts down first ends the daemon, whose holds we then undo.
kill -9 of the guardian harms nothing by itself; the daemon polls ``Guardian`` and starts another.

It imports only what it needs (a few modules of ``fairsched.cgroup``) and keeps small: 15 MB resident, 8 MB
of them its own, the rest the interpreter's files, which others map as well.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
from typing import TYPE_CHECKING

from fairsched.base.niceness import set_nice
from fairsched.base.package import with_package
from fairsched.base.process import ProcessId
from fairsched.cgroup.journal import Journal
from fairsched.cgroup.path import CgroupRef, Mount, find_mount, find_v1_roots
from fairsched.cgroup.tree import place
from fairsched.errors import FairschedError
from fairsched.guardian.loop import Keeper, log

if TYPE_CHECKING:
    import subprocess

DEFAULT_GRACE_MS = 50

_OOM_SCORE_ADJ = -1000
_NICE = -10


class Guardian:
    """The guardian as the daemon sees it: starts it, says whether it lives, starts it again.

    Call :meth:`start` before the first hold. Add :meth:`fileno` to the daemon's poll set (readable = it has died), and
    start another then, or when :meth:`is_alive`, asked at least once a second, says that it does nothing.
    """

    def __init__(self, journal_directory: str, *, grace_ms: int = DEFAULT_GRACE_MS) -> None:
        self._journal_directory = journal_directory
        self._grace_ms = grace_ms
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self.starts = 0
        """How often one was started; more than 1 means that guardians died."""

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """Of the guardian; None when none was started or it was stopped."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        """Its pidfd, -1 without one. Another number after each start: register it again."""
        return self._pidfd

    def is_alive(self) -> bool:
        """Whether it runs. One that was stopped by a signal protects no tenant and counts as dead."""
        if self._process is None or self._process.poll() is not None:
            return False
        try:
            with open(f"/proc/{self._process.pid}/stat", "rb") as file:
                text = file.read()
        except OSError:
            return False
        return text[text.rindex(b")") + 2 :][:1] not in (b"T", b"t", b"Z", b"X")

    def start(self, timeout_s: float = 20.0) -> None:
        """Start it and wait until it watches (about 60 ms). Raises FairschedError if it does not come up."""
        import subprocess  # not at the top: the guardian itself has no use for it

        self._end()
        me = ProcessId.me()
        ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
        command = [sys.executable, "-S", "-s", "-m", "fairsched.guardian.process"]
        command += ["--daemon-pid", str(me.pid), "--daemon-start", str(me.start_ticks)]
        command += ["--journal", os.path.abspath(self._journal_directory)]
        command += ["--grace-ms", str(self._grace_ms), "--ready-fd", str(ready_write)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                # -S skips site-packages (memory, and 20 ms): say where this package lies
                env=with_package(os.environ),
                pass_fds=(ready_write,),
                start_new_session=True,
            )
            os.close(ready_write)
            ready_write = -1
            self._pidfd = os.pidfd_open(self._process.pid)
            self.starts += 1
            poll = select.poll()
            poll.register(ready_read, select.POLLIN)
            if not poll.poll(int(timeout_s * 1000)) or not os.read(ready_read, 1):
                self._end()
                raise FairschedError("the guardian did not start", remedy="see its message on stderr")
        except OSError as error:
            self._end()
            raise FairschedError(f"the guardian could not be started: {error}") from error
        finally:
            os.close(ready_read)
            if ready_write >= 0:
                os.close(ready_write)

    def stop(self, timeout_s: float = 1.0) -> None:
        """End it: it leaves by itself when nothing is held, else it is killed after the timeout.

        Thaw first (``Freezer.close``). A daemon that simply exits need not call this.
        """
        import subprocess

        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        pidfd, self._pidfd = self._pidfd, -1
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if pidfd >= 0:
            os.close(pidfd)


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m fairsched.guardian.process``; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="fairsched.guardian.process", description="Thaws when the daemon cannot."
    )
    parser.add_argument("--daemon-pid", type=int, required=True)
    parser.add_argument("--daemon-start", type=int, required=True, help="start time in ticks after boot")
    parser.add_argument("--journal", required=True, help="directory of holds")
    parser.add_argument("--grace-ms", type=int, default=DEFAULT_GRACE_MS)
    parser.add_argument("--ready-fd", type=int, help="a byte is written to it when the guardian watches")
    options = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mount = find_mount()
    keeper = Keeper(
        ProcessId(options.daemon_pid, options.daemon_start),
        Journal(options.journal),
        mount,
        options.grace_ms * 1_000_000,
    )
    log(f"guardian ready pid={os.getpid()} daemon={options.daemon_pid} {_protect(mount)}")
    if options.ready_fd is not None:
        with contextlib.suppress(OSError):
            os.write(options.ready_fd, b"1")
            os.close(options.ready_fd)
    return keeper.run()


def _leave(hierarchy: Mount) -> bool:
    """Go to the root of a v1 hierarchy; whether that worked."""
    with contextlib.suppress(FairschedError), CgroupRef.open(hierarchy, "/") as top:
        place(top)
        return True
    return False


def _protect(mount: Mount) -> str:
    """Be hard to freeze, to kill for memory and to starve; each is best effort. Returns what worked."""
    done = []
    with contextlib.suppress(FairschedError), CgroupRef.open(mount, "/") as root:
        place(root)
        done.append("cgroup=/")
    # A runtime of containers that uses cgroup v1 ends by one of these all that were born in the daemon's container.
    left = sum(_leave(hierarchy) for hierarchy in find_v1_roots())
    if left:
        done.append(f"v1={left}")
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(_OOM_SCORE_ADJ))
        done.append(f"oom_score_adj={_OOM_SCORE_ADJ}")
    if set_nice(_NICE):
        done.append(f"nice={_NICE}")
    return " ".join(done)


if __name__ == "__main__":
    sys.exit(main())
