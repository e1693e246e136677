# SPDX-License-Identifier: Apache-2.0
"""What the escalation remembers, on disk, and the lock of whoever acts on it.

Problem: cool-downs and budgets that a restart forgets are none, and a person with ``fairsched escalation run`` must
not act at the same time as the companion.

Approach: one JSON file, replaced whole, under one ``flock``. The companion takes the lock for as long as an action
lasts, the command line too; whoever finds it taken does nothing. A file that cannot be understood stops the
escalation until a person has looked: to act without the memory of what was done is what must not happen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fairsched.companion.escalate.model import State
from fairsched.companion.locked import LockedFile
from fairsched.errors import FairschedError

VERSION = 1


@dataclass(frozen=True)
class _Document:
    version: int
    state: State = field(default_factory=State)


_DOCUMENT = TypeAdapter(_Document)


class StateDamaged(FairschedError):
    """The file cannot be read or understood."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(
            f"{path}: {what}; nothing is escalated and nothing taken back",
            remedy="see `fairsched escalation history`, undo by hand what is in force, then delete the file",
        )


def encode(state: State) -> bytes:
    """One JSON document."""
    return _DOCUMENT.dump_json(_Document(VERSION, state), indent=1) + b"\n"


def decode(raw: bytes) -> State:
    """The inverse of :func:`encode`; fields of a newer version are ignored. Raises ValueError."""
    document = _DOCUMENT.validate_json(raw)
    if document.version != VERSION:
        raise ValueError(f"it is of version {document.version}, not {VERSION}")
    return document.state


class Store(LockedFile):
    """The file ``state.json`` in `directory`, which is made when it is first written to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "state.json")

    def load(self) -> State:
        """The state; a new one when there is no file. Raises StateDamaged."""
        try:
            return decode(self.path.read_bytes())
        except FileNotFoundError:
            return State()
        except PermissionError:
            raise FairschedError(f"no permission to read {self.path}", remedy="use sudo") from None
        except OSError as error:
            raise StateDamaged(self.path, f"cannot be read: {error.strerror}") from None
        except (ValidationError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise StateDamaged(self.path, f"cannot be understood: {first}") from None

    def save(self, state: State, *, is_durable: bool = True) -> None:
        """Replace the file; with `is_durable` it outlives a power cut. Raises OSError."""
        self.write(encode(state), is_durable=is_durable)
