# SPDX-License-Identifier: Apache-2.0
"""``fairsched events``: what is done to tenants as JSON lines, what there is and, with -f, what is to come."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from fairsched.cli.common import daemon_options
from fairsched.cli.duration import seconds_of

if TYPE_CHECKING:
    from fairsched.protocol.client import ControlClient
    from fairsched.protocol.events import EventRecord, EventStream
    from fairsched.protocol.status import DecisionRecord

DEFAULT_SINCE_S = 60.0
_LOOK_S = 0.5
_BURST_S = 2.0
"""A tenant that was silent for so long may say so much at once."""

EPILOG = """\b
One JSON object a line. "event" says what it is:
  decision    a hold or a thaw with its reason and numbers; what is not known
              is left out; "suppressed" counts those of the tenant before it
              that --rate kept back
  suppressed  how many were kept back of a tenant that then fell silent
  termination a process was told to end (SIGTERM, SIGKILL), or was let off
  vram        a tenant is over its limit of GPU memory and what is done about
              it, or within it again
  gap         decisions may be missing here (the daemon was restarted, or
              forgot older ones)
A daemon that is restarted is waited for. It remembers some 4000 decisions and
1000 of each other kind; `fairsched report` has counts of a longer past.
\b
Examples:
  fairsched events --since 10m --tenant batch
  fairsched events -f | jq 'select(.reason == "deadline")'
  fairsched events -f --rate 0"""


@click.command("events", epilog=EPILOG)
@click.option("-f", "--follow", is_flag=True, help="Go on with those to come, until Ctrl-C.")
@click.option(
    "--since",
    "since_s",
    type=seconds_of,
    metavar="TIME",
    help="How far back: 90s, 15m.  [default: 60s; with -f none]",
)
@click.option("--tenant", metavar="NAME", help="Only this tenant's.")
@click.option(
    "--rate",
    type=click.FloatRange(0, 1000),
    default=20.0,
    show_default=True,
    help="Most decisions per second and tenant; 0 = all.",
)
@daemon_options
def command(
    client: ControlClient, follow: bool, since_s: float | None, tenant: str | None, rate: float
) -> None:
    """Holds, thaws, terminations and VRAM actions as JSON lines."""
    from fairsched.protocol.events import EventStream

    if since_s is None:
        since_s = 0.0 if follow else DEFAULT_SINCE_S
    stream = EventStream(tenant=tenant, per_s=rate or None, burst=max(1, round(rate * _BURST_S)))
    since_ns = time.monotonic_ns() - round(since_s * 1e9)
    tail = Tail(client, stream, since_ns)
    try:
        tail.poll(is_first=True)
        while follow:
            time.sleep(_LOOK_S)
            tail.poll_again()
    finally:
        tail.close()


class Tail:
    """The end of the daemon's decisions, printed as they come."""

    def __init__(self, client: ControlClient, stream: EventStream, since_ns: int) -> None:
        self._client = client
        self._stream = stream
        self._since_ns = since_ns
        self._is_away = False

    def poll(self, *, is_first: bool = False) -> None:
        """Print what is new. Raises ControlError when the daemon does not answer."""
        from fairsched.protocol.events import event_from_plain, gap_document
        from fairsched.protocol.status import decision_from_plain

        answer = self._client.request("decisions", since_ns=self._since_ns)
        records: list[DecisionRecord | EventRecord] = [
            *map(decision_from_plain, answer["decisions"]),
            *map(event_from_plain, answer["events"]),
        ]
        records.sort(key=lambda record: record.t_ns)
        if not answer["is_gapless"]:
            why = "the daemon remembers none that are older" if is_first else "the daemon forgot some"
            _print(gap_document(time.time(), why))
        for document in self._stream.documents(records):
            _print(document)
        # within one tick a decision may be stamped later than the next one: the latest, not the last
        self._since_ns = max([self._since_ns, *(record.t_ns for record in records)])
        for document in self._stream.counts(time.monotonic_ns(), time.time()):
            _print(document)

    def poll_again(self) -> None:
        """The same; a daemon that is away is said once, and waited for."""
        from fairsched.errors import ControlError
        from fairsched.protocol.events import gap_document

        try:
            if self._is_away:
                self._client.request("ping")
                _print(gap_document(time.time(), "the daemon was away"))
                self._is_away = False
                click.echo("the daemon is back", err=True)
            self.poll()
        except ControlError as error:
            if not self._is_away:
                click.echo(f"{error}; waiting for it", err=True)
            self._is_away = True

    def close(self) -> None:
        """What was kept back until now."""
        for document in self._stream.counts(time.monotonic_ns(), time.time(), is_last=True):
            _print(document)


def _print(document: dict[str, Any]) -> None:
    """Whole and at once: somebody may read along."""
    click.echo(json.dumps(document, separators=(",", ":")))
