# SPDX-License-Identifier: Apache-2.0
"""Polls something that may answer late or never, in a thread beside the loop.

Problem. A call into the driver can take milliseconds, or not return at all once a GPU has fallen off its bus, and the
loop that freezes people's processes must not wait for it.

Approach. A thread asks every now and then, and at once when somebody wants to know; whoever owns it keeps the answer
for the loop to take. One that fails is told and asks again. One that hangs is left behind at the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_CLOSE_S = 2.0

logger = logging.getLogger(__name__)


class Poller:
    """A thread that polls.

    It calls ``poll`` every ``pause_s()`` seconds; ``lost`` names, in the log, what a failure costs, and ``asked``
    who was asked.
    """

    def __init__(
        self,
        name: str,
        poll: Callable[[], None],
        pause_s: Callable[[], float],
        lost: str,
        asked: str = "nvml",
    ) -> None:
        self._poll, self._pause_s, self._lost, self._asked = poll, pause_s, lost, asked
        self._is_wanted, self._is_closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Poll at once; once more, if a poll is going on."""
        self._is_wanted.set()

    def stop(self) -> None:
        """Ask no more; the thread ends by itself."""
        self._is_closing.set()
        self._is_wanted.set()

    def close(self) -> bool:
        """End the thread; False: the driver keeps it, and would keep whoever asks it next."""
        self.stop()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.warning("%s=hangs: left behind", self._asked)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._is_wanted.wait(self._pause_s())
            if self._is_closing.is_set():
                return
            self._is_wanted.clear()
            try:
                self._poll()
            except Exception:
                logger.exception("%s=failed lost=%r", self._asked, self._lost)
