# SPDX-License-Identifier: Apache-2.0
"""Names of shares, and what is offered of them (pure).

A share is ``UUID::NUMBER``, numbers from 0 on: the same GPU has the same shares after whatever restart, and one that is
split into fewer keeps the lower numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairsched.gpu.nvml import Mig

RESOURCE = "fairsched.io/gpu-share"
SEPARATOR = "::"
MOST_SHARES = 1000
"""Of one GPU."""
MOST_DEVICES = 16_000
"""Of one node, in one message: some 80 bytes each, and the kubelet takes 4 MiB."""
MOST_ID_CHARS = 128
"""UUID and number are 50."""


class BadShare(ValueError):
    """No name of a share; the text says why."""


@dataclass(frozen=True)
class Offer:
    """A GPU or MIG instance."""

    uuid: str
    minor: int | None
    """N of /dev/nvidiaN; of an instance, that of its GPU. None: NVML does not say."""
    numa: int | None = None
    mig: Mig | None = None
    trouble: str | None = None
    """Why its shares are Unhealthy; None: they are not."""

    @property
    def is_well(self) -> bool:
        return self.trouble is None


def name_of(uuid: str, number: int) -> str:
    """Of a share."""
    return f"{uuid}{SEPARATOR}{number}"


def parse(name: str) -> tuple[str, int]:
    """(UUID, number) of a share. Raises BadShare."""
    uuid, found, text = name.rpartition(SEPARATOR)
    # int() takes signs, spaces, underscores and digits of other scripts: one share would have many names.
    is_number = text.isascii() and text.isdecimal() and (text == "0" or not text.startswith("0"))
    if len(name) > MOST_ID_CHARS or not found or not uuid or not is_number:
        raise BadShare(f"{name[:MOST_ID_CHARS]!r} is no share: UUID{SEPARATOR}NUMBER is")
    return uuid, int(text)


def names(offers: Iterable[Offer], shares_per_gpu: int) -> Mapping[str, Offer]:
    """Every share that is offered, and what it is of; at most MOST_DEVICES, whole GPUs only."""
    found: dict[str, Offer] = {}
    for offer in offers:
        if len(found) + shares_per_gpu > MOST_DEVICES:
            break
        found |= {name_of(offer.uuid, number): offer for number in range(shares_per_gpu)}
    return found


def count(ids: Iterable[str]) -> dict[str, int]:
    """Shares by GPU, in the order in which they are named first. Raises BadShare, also for one that is named twice."""
    found: dict[str, int] = {}
    seen: set[str] = set()
    for one in ids:
        if one in seen:
            raise BadShare(f"{one[:MOST_ID_CHARS]!r} is named twice")
        seen.add(one)
        uuid, _ = parse(one)
        found[uuid] = found.get(uuid, 0) + 1
    return found
