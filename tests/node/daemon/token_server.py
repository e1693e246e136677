# SPDX-License-Identifier: Apache-2.0
"""What a tenant's own server would export: the steps of simulated workloads as tokens, on a metrics page.

Run by test_slis.py inside the tenant's cgroup, so that it is frozen with the tenant, as a real one is.
"""

from __future__ import annotations

import argparse
import http.server
import struct
from pathlib import Path

HEADER = struct.Struct("QQQQ")
"""Of a step log; the third field counts steps (fairsched/simgpu/workload.py)."""
PAGES = {
    "vllm": "# TYPE vllm:generation_tokens_total counter\n"
    'vllm:generation_tokens_total{{engine="0",model_name="sim"}} {tokens}\n'
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{{engine="0",model_name="sim"}} 1\n',
    "made": '# TYPE made_total counter\nmade_total{{model="sim",user="else"}} 7\n'
    'made_total{{model="sim",user="us"}} {tokens}\n',
}


def tokens(steps: Path, name: str) -> int:
    """Steps finished by all workloads whose log is called so."""
    count = 0
    for path in steps.glob(f"*-{name}.[0-9]*"):
        with open(path, "rb") as log:
            count += HEADER.unpack(log.read(HEADER.size))[2]
    return count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--steps", type=Path, required=True, help="directory of the step logs")
    parser.add_argument("--name", required=True, help="of the workloads")
    parser.add_argument("--page", choices=PAGES, required=True)
    options = parser.parse_args()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = PAGES[options.page].format(tokens=tokens(options.steps, options.name)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            pass

    http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
