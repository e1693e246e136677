# SPDX-License-Identifier: Apache-2.0
"""The process that holds the probes: each request is answered."""

from __future__ import annotations

import json
import socket
import threading

from fairsched.bpf.attacher import serve

PATIENCE_S = 10.0


def test_what_is_asked_in_one_breath_is_all_answered() -> None:
    """Several files are found in one look, as when the daemon starts."""
    ours, theirs = socket.socketpair()
    paths = [f"/{name}" for name in "abcdef"]
    with ours, theirs:
        ours.settimeout(PATIENCE_S)
        ours.sendall(b"".join(json.dumps({"path": path}).encode() + b"\n" for path in paths))
        thread = threading.Thread(target=serve, args=(theirs, lambda path: {"path": path}), daemon=True)
        thread.start()
        with ours.makefile("r", encoding="utf-8") as lines:
            answered = [json.loads(lines.readline())["path"] for _ in paths]
        ours.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it ends with the other end"
    assert answered == paths
