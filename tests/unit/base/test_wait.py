# SPDX-License-Identifier: Apache-2.0
"""Waiting for descriptors, also for those that select() refuses."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from fairsched.base.wait import is_readable, wait_readable

_FD_SETSIZE = 1024


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_only_what_can_be_read_is_told(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    assert wait_readable([ours, theirs], 0) == wait_readable([ours, theirs], -1) == []
    theirs.send(b"x")
    assert wait_readable([ours, theirs], None) == [ours]
    assert (is_readable(ours), is_readable(theirs.fileno())) == (True, False)


def test_the_end_of_the_other_side_can_be_read(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    assert is_readable(pair[0])


def test_a_descriptor_beyond_those_of_select_is_one_like_others(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] <= _FD_SETSIZE:
        pytest.skip(f"host: at most {limits[1]} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    try:
        far = fcntl.fcntl(pair[0], fcntl.F_DUPFD, _FD_SETSIZE)
        try:
            assert not is_readable(far)
            pair[1].send(b"x")
            assert wait_readable([far], 1.0) == [far]
        finally:
            os.close(far)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_closed_descriptor_is_an_error_and_no_end() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        is_readable(fd)
