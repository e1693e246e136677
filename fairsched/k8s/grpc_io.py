# SPDX-License-Identifier: Apache-2.0
"""gRPC on unix sockets, as the kubelet and its plugins speak it: serve a few calls, make a few.

Problem. The kubelet calls plugins on sockets in directories of its own, and is called on others. Stubs that a generator
writes for that hide little and must be kept.

Approach. A served call is a function and the classes of its two messages (:class:`Call`); :func:`serve` puts them
behind generic handlers. :func:`ask` makes one call over one connection, within its time. Sizes, workers and times are
bounded: whoever is on the other end costs no more than that.

Errors: NotAnswered, with what was asked and why; OSError where a socket cannot be made.
Needs the extra ``k8s``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from fairsched.errors import FairschedError

MAX_MESSAGE_BYTES = 16 << 20
"""The kubelet's own limit for pod resources."""
MAX_PATH_BYTES = 107
"""Of a unix socket, by its kernel structure."""
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Else the path would be the name of the host, which servers in Go refuse as malformed.
    ("grpc.default_authority", "localhost"),
    # Two processes on one socket would each get a part of the calls.
    ("grpc.so_reuseport", 0),
)

Answer = TypeVar("Answer", bound=Message)
Context = grpc.ServicerContext
if TYPE_CHECKING:  # generic in the stubs alone
    Handler = grpc.GenericRpcHandler[Any, Any]
else:
    Handler = grpc.GenericRpcHandler


class NotAnswered(FairschedError):
    """A call came to nothing: nobody is there, it took too long, or it was refused."""

    def __init__(self, what: str, error: grpc.RpcError) -> None:
        code = error.code() if isinstance(error, grpc.Call) else None
        self.is_unknown_call = code is grpc.StatusCode.UNIMPLEMENTED
        """The other end knows the service's name for this call not."""
        name = code.name.lower().replace("_", " ") if code is not None else "failed"
        details = error.details() if isinstance(error, grpc.Call) else None
        super().__init__(f"{what}: {name}: {(details or '')[:300]}".rstrip(": "))


@dataclass(frozen=True)
class Call:
    """One served call."""

    function: Callable[..., Any]
    """(request, context) -> answer; an iterator of answers where it streams."""
    request: type[Message]
    answer: type[Message]
    is_stream: bool = False


def handler(service: str, calls: Mapping[str, Call]) -> Handler:
    """What serves the calls of `service`, such as ``v1beta1.DevicePlugin``, by their names."""
    made = {}
    for name, call in calls.items():
        kind = grpc.unary_stream_rpc_method_handler if call.is_stream else grpc.unary_unary_rpc_method_handler
        made[name] = kind(
            call.function,
            request_deserializer=call.request.FromString,
            response_serializer=call.answer.SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service, made)


def serve(path: Path, *handlers: Handler, workers: int = 8) -> grpc.Server:
    """Serve on a socket at `path`, in place of one that is there; ``stop`` it in the end.

    At most `workers` calls at a time, each on a thread; a stream takes one as long as it lasts.
    Raises OSError.
    """
    address = _address(path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    pool = futures.ThreadPoolExecutor(workers, thread_name_prefix=path.name)
    server = grpc.server(pool, handlers=list(handlers), options=_OPTIONS, maximum_concurrent_rpcs=workers)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"{path}: {error}") from error
    # Who may not write to it cannot connect: a stranger's stream would end the kubelet's.
    path.chmod(0o600)
    server.start()
    return server


def ask(path: Path, call: str, request: Message, answer: type[Answer], within_s: float) -> Answer:
    """The answer to one call, such as ``/v1.PodResourcesLister/List``. Raises NotAnswered; OSError for a bad path."""
    with grpc.insecure_channel(_address(path), options=_OPTIONS) as channel:
        method = channel.unary_unary(
            call,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            told: Answer = method(request, timeout=within_s)
        except grpc.RpcError as error:
            raise NotAnswered(f"{call} on {path}", error) from error
        return told


def _address(path: Path) -> str:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise OSError(f"{path}: longer than {MAX_PATH_BYTES} bytes, which is the most for a unix socket")
    return f"unix://{path.absolute()}"
