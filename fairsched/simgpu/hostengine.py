# SPDX-License-Identifier: Apache-2.0
"""A stand-in for nv-hostengine: what a client of libdcgm connects to, and what can die, hang and come back.

    with HostEngine(path) as engine:        # or HostEngine("127.0.0.1:0"), then engine.address
        ...                                 # the stand-in libdcgm connects and asks it before each answer
        engine.hang()                       # accepts, and answers no more
        engine.stop()                       # all connections break
        engine.start()                      # another engine: nobody's watches are known to it

It answers each byte with a byte. What was measured the library reads from the simulated GPUs itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from types import TracebackType

_BACKLOG = 16


class HostEngine:
    """Listens on a unix socket (an absolute path) or a TCP address (HOST:PORT)."""

    def __init__(self, address: str) -> None:
        self.address = address
        """Where it listens; a port 0 becomes the one that was free."""
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._clients: list[socket.socket] = []
        self._answers = threading.Event()

    def __enter__(self) -> HostEngine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to listen, with no client."""
        if self.address.startswith("/"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(self.address)
        else:
            host, _, port = self.address.rpartition(":")
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, int(port)))
            self.address = f"{host}:{listener.getsockname()[1]}"
        listener.listen(_BACKLOG)
        self._listener = listener
        self._answers.set()
        threading.Thread(target=self._accept, args=(listener,), name="hostengine", daemon=True).start()

    def hang(self) -> None:
        """Answer nobody until it is stopped."""
        self._answers.clear()

    def stop(self) -> None:
        """Break all connections and listen no more. May be called twice."""
        with self._lock:
            clients, self._clients = self._clients, []
            listener, self._listener = self._listener, None
        for one in (*clients, *((listener,) if listener is not None else ())):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        if self.address.startswith("/"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # stopped
            with self._lock:
                if self._listener is not listener:
                    client.close()
                    return
                self._clients.append(client)
            threading.Thread(
                target=self._serve, args=(client,), name="hostengine-client", daemon=True
            ).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1):
                if self._answers.is_set():
                    client.sendall(data)
