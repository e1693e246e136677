# SPDX-License-Identifier: Apache-2.0
"""Two ends that never wait for each other."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from fairsched.bpf.channel import Channel

LONGEST = {
    "path": "\udcff" * 4096,
    "name": "\udcff" * 4096,
    "failures": {"cu" + "x" * 126 + str(n): "no" for n in range(512)},
}


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = (Channel(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    for number in range(3):
        ends[0].send({"number": number})
    assert ends[1].take() == [{"number": number} for number in range(3)]
    assert ends[1].take() == []


def test_the_longest_message_there_is_finds_room(ends: tuple[Channel, Channel]) -> None:
    ends[0].send(LONGEST)
    assert ends[1].take() == [LONGEST]


def test_who_sends_to_one_that_does_not_read_is_told_so_and_does_not_wait(
    ends: tuple[Channel, Channel],
) -> None:
    with pytest.raises(ConnectionError, match="does not read"):
        for _ in range(1000):
            ends[0].send(LONGEST)


def test_what_was_said_before_the_end_is_taken(ends: tuple[Channel, Channel]) -> None:
    ends[0].send({"last": True})
    ends[0].close()
    assert ends[1].take() == [{"last": True}]
    with pytest.raises(ConnectionError, match="gone"):
        ends[1].take()
    with pytest.raises(ConnectionError):
        ends[1].send({})
