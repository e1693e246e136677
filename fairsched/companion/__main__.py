# SPDX-License-Identifier: Apache-2.0
"""``python -m fairsched.companion``: the process; started by the daemon, of no use to a person."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairsched.base.logs import set_up_logging
from fairsched.base.niceness import set_nice
from fairsched.base.wait import is_readable
from fairsched.companion.keeper import wishes
from fairsched.companion.part import Finding, Moment, Node, Part
from fairsched.config import Config, from_bytes
from fairsched.errors import ConfigError, ControlError, FairschedError
from fairsched.protocol.status import to_plain

_NICE = 10
"""Relative to the daemon's, which may be better than everybody's."""
_OUT_OF_MEMORY_SCORE = 200

logger = logging.getLogger(__name__)


@dataclass
class _Seat:
    """A part and its turn."""

    part: Part
    due_s: float = 0.0
    seen_ns: int | None = None
    """Moment of the last status it was handed, on the daemon's clock."""
    fault: str | None = None
    """Why its last turn failed."""
    finding: Finding | None = None


class Companion:
    """The round of the parts. One thread; ends when standard input does."""

    def __init__(self, node: Node, parts: Sequence[Part]) -> None:
        self._node = node
        self._seats = [_Seat(part) for part in parts]
        self._told: Finding | None = None

    def run(self, life_fd: int) -> None:
        """Until `life_fd` is at its end."""
        while True:
            wait_s = max(0.0, min((seat.due_s for seat in self._seats), default=1.0) - time.monotonic())
            if is_readable(life_fd, wait_s) and not os.read(life_fd, 4096):
                return
            self.step(time.monotonic())

    def step(self, now_s: float) -> None:
        """The turn of every part that is due, and then what they found."""
        due = [seat for seat in self._seats if seat.due_s <= now_s]
        if not due:
            return
        for seat in due:
            seat.due_s = now_s + seat.part.interval_s
            try:
                seat.finding = seat.part.take(self._moment(seat))
                seat.fault = None
            except ControlError as error:  # the daemon is busy or leaving: nobody's fault here
                logger.debug("part=%s error=%r", seat.part.name, str(error))
            except Exception as error:
                if seat.fault is None:
                    logger.exception("part=%s failed", seat.part.name)
                seat.fault = f"{seat.part.name}: {error}"
        self._tell()

    def _moment(self, seat: _Seat) -> Moment:
        report = self._node.report(max_age_s=seat.part.interval_s / 2)
        if not seat.part.wants_decisions:
            return Moment(report)
        if seat.seen_ns is None:
            seat.seen_ns = report.t_ns
            return Moment(report, is_gapless=False)
        decisions, is_gapless = self._node.decisions(
            seat.seen_ns
        )  # if there is no answer, the next time from here
        seat.seen_ns = max(report.t_ns, decisions[-1].t_ns) if decisions else report.t_ns
        return Moment(report, decisions, is_gapless)

    def _tell(self) -> None:
        findings = [seat.finding for seat in self._seats if seat.finding is not None]
        faults = [seat.fault for seat in self._seats if seat.fault is not None]
        whole = Finding(
            slis=next((one.slis for one in findings if one.slis is not None), None),
            tokens={tenant: rate for one in findings for tenant, rate in one.tokens.items()},
            faults=[*faults, *(fault for one in findings for fault in one.faults)],
        )
        if whole == Finding(faults=[]) and whole == self._told:
            return
        with contextlib.suppress(ControlError):
            self._node.tell(to_plain(whole))
            self._told = whole

    def close(self) -> None:
        """Every part, whatever another does."""
        for seat in self._seats:
            try:
                seat.part.close()
            except Exception:
                logger.exception("part=%s failed to close", seat.part.name)


def parts_of(config: Config, node: Node) -> list[Part]:
    """The parts that the configuration asks for. Raises ConfigError when one cannot be set up."""
    from fairsched.companion.slis.part import SliPart

    parts: list[Part] = [SliPart(config)] if wishes(config) else []
    others: list[Callable[[], Iterable[tuple[str, tuple[str, ...], float]]]] = []
    if config.escalation.enabled:
        from fairsched.companion.escalate.ladder import part_of

        escalation = part_of(config)
        parts.append(escalation)
        others.append(escalation.rows)
    if config.guard.is_kept:
        from fairsched.companion.guard.setup import part_of as guard_of

        guard = guard_of(config, node)
        parts.append(guard)
        others.append(guard.rows)
    elif "guard" in wishes(config):
        from fairsched.companion.guard.setup import left_part_of

        parts.append(left_part_of(config))
    if config.metrics.listen is not None:
        from fairsched.companion.exporter.part import Exporter

        parts.append(Exporter(config.metrics, node, others))
    parts += _kubernetes_parts(config, node)
    if config.history.enabled:
        from fairsched.companion.history.part import HistoryPart

        parts.append(HistoryPart(config.history_path, config.history))
    return parts


def _kubernetes_parts(config: Config, node: Node) -> list[Part]:
    """What has shares of GPUs asked for, and what makes tenants of pods."""
    parts: list[Part] = []
    dra = None
    if config.kubernetes.dra.enabled:
        try:
            from fairsched.companion.dra.part import part_of as dra_of
        except ImportError as error:
            raise ConfigError(
                f"kubernetes.dra needs what is not installed: {error}", remedy="pip install 'fairsched[k8s]'"
            ) from None
        dra = dra_of(config)
        parts.append(dra)
    if config.kubernetes.watch_pods:
        from fairsched.companion.pods.part import part_of as pods_of

        pods = pods_of(config, node, [] if dra is None else [dra.asked])
        parts.append(pods)
        if dra is not None:
            dra.changed = pods.wake
    return parts


def _stand_back() -> None:
    """Be the first to be starved and to be killed for memory; each is best effort."""
    set_nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_OUT_OF_MEMORY_SCORE), encoding="ascii")


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0 when the daemon left, 1 when a part could not be set up."""
    parser = argparse.ArgumentParser(prog="fairsched.companion", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="the daemon's control socket")
    options = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGHUP):  # the terminal's; the daemon says when it is over
        signal.signal(number, signal.SIG_IGN)
    _stand_back()
    node = Node(options.socket)
    try:
        config = from_bytes(node.config_text().encode(), "the configuration in force")
        set_up_logging(config.log.format, config.log.level)
        parts = parts_of(config, node)
    except FairschedError as error:
        logger.error("companion=absent error=%r remedy=%r", str(error), error.remedy)
        with contextlib.suppress(ControlError):
            node.tell(to_plain(Finding(faults=[f"companion: {error}"])))
        return 1
    companion = Companion(node, parts)
    logger.info("companion pid=%d parts=%s", os.getpid(), ",".join(part.name for part in parts))
    try:
        companion.run(sys.stdin.fileno())
    finally:
        companion.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
