# SPDX-License-Identifier: Apache-2.0
"""Progress over many performances by their estimated time; plain lines where stderr is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """``count`` performances in batches of ``batches_s`` together; all takes ``total_s``, with what is played alone
    before some of them, which is nobody's batch and is spread over all."""

    def __init__(self, count: int, batches_s: float, total_s: float) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._count, self._number = count, 0
        self._stretch = total_s / batches_s if batches_s else 1.0
        self._task = self._progress.add_task("", total=total_s)
        self._done_s, self._batch_s = 0.0, 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._progress.update(self._task, completed=self._done_s + self._batch_s)
        self._progress.stop()

    def begin(self, titles: Sequence[str], batch_s: float) -> None:
        """The next batch, by what is in it and how long it takes."""
        self._done_s += self._batch_s
        self._batch_s, self._number = batch_s * self._stretch, self._number + len(titles)
        what = f"{self._number}/{self._count} {', '.join(titles)}"
        self._progress.update(self._task, description=what, completed=self._done_s)
        if not self._console.is_terminal:
            print(what, file=sys.stderr, flush=True)

    def progress(self, done: float) -> None:
        """The part of the batch that is done, 0 to 1."""
        self._progress.update(self._task, completed=self._done_s + done * self._batch_s)

    def say(self, line: str) -> None:
        if self._console.is_terminal:
            self._progress.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)
