# SPDX-License-Identifier: Apache-2.0
"""gRPC on unix sockets: calls and streams get through, and what goes wrong is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from fairsched.k8s.grpc_io import Call, Context, NotAnswered, ask, handler, serve
from fairsched.k8s.proto.deviceplugin_pb2 import Device, Empty, ListAndWatchResponse, RegisterRequest

SERVICE = "test.Echo"
WITHIN_S = 10.0


def echo(request: RegisterRequest, context: Context) -> RegisterRequest:
    if request.version == "refuse":
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not this one")
    return request


def stream(request: Empty, context: Context) -> Iterator[ListAndWatchResponse]:
    for name in "ab":
        yield ListAndWatchResponse(devices=[Device(ID=name)])


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "s.sock"
    place.write_text("left by another")
    calls = {
        "Echo": Call(echo, RegisterRequest, RegisterRequest),
        "Stream": Call(stream, Empty, ListAndWatchResponse, is_stream=True),
    }
    server = serve(place, handler(SERVICE, calls))
    yield place
    server.stop(None)


def test_a_call_is_answered(path: Path) -> None:
    asked = RegisterRequest(version="1", endpoint="x" * 1000)
    assert ask(path, f"/{SERVICE}/Echo", asked, RegisterRequest, WITHIN_S) == asked


def test_a_stream_is_read_to_its_end(path: Path) -> None:
    with grpc.insecure_channel(f"unix://{path}") as channel:
        call = channel.unary_stream(
            f"/{SERVICE}/Stream",
            request_serializer=Empty.SerializeToString,
            response_deserializer=ListAndWatchResponse.FromString,
        )
        assert [one.devices[0].ID for one in call(Empty(), timeout=WITHIN_S)] == ["a", "b"]


def test_a_refusal_says_what_and_why(path: Path) -> None:
    with pytest.raises(NotAnswered, match=r"/test.Echo/Echo on .*: invalid argument: not this one"):
        ask(path, f"/{SERVICE}/Echo", RegisterRequest(version="refuse"), RegisterRequest, WITHIN_S)


def test_a_call_that_the_other_end_does_not_know_is_told_apart(path: Path) -> None:
    with pytest.raises(NotAnswered) as caught:
        ask(path, f"/{SERVICE}/Other", Empty(), Empty, WITHIN_S)
    assert caught.value.is_unknown_call


def test_nobody_there_is_an_error_within_its_time(tmp_path: Path) -> None:
    with pytest.raises(NotAnswered, match=r"unavailable|deadline") as caught:
        ask(tmp_path / "none.sock", f"/{SERVICE}/Echo", Empty(), Empty, WITHIN_S)
    assert not caught.value.is_unknown_call


def test_a_path_that_is_too_long_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    with pytest.raises(OSError, match="107 bytes"):
        serve(long)
    with pytest.raises(OSError, match="107 bytes"):
        ask(long, "/a/b", Empty(), Empty, WITHIN_S)
    assert not long.exists()
