# SPDX-License-Identifier: Apache-2.0
"""docs/metrics.md, written from the catalogue: ``python -m fairsched.companion.exporter.reference``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from fairsched.companion.exporter.catalogue import CHAPTERS
from fairsched.companion.exporter.family import BOUNDS, Family, Kind
from fairsched.companion.exporter.http import ClientLimits
from fairsched.companion.exporter.readings import MOST_TENANTS

_LIMITS = ClientLimits()

_INTRO = f"""\
# Metrics

<!-- Written by `python -m fairsched.companion.exporter.reference`; a test compares it with the catalogue. -->

`metrics.listen: ":9477"` answers Prometheus on `http://127.0.0.1:9477/metrics`, `0.0.0.0:9477` on every interface;
`null` is off. The exporter is a part of the companion, a process beside the daemon: a page is the daemon's status, at
most a second old, and all scrapes of that second share it. So a hundred scrapes cost the daemon what one does, and
without a scrape it does nothing. Only `fairsched_gpu_active_ratio` it asks of NVML itself, for each page, and what it
keeps for that are the samples of the page before: with two Prometheus servers each is told of the time since the other.
And for `fairsched_gpu_xid_errors_total` a thread waits for the driver's reports of errors, which NVML hands on as they
come: the count is the companion's own, from its start. What was reported before is in `dmesg`.

```yaml
scrape_configs:
  - job_name: fairsched
    static_configs: [{{targets: ["127.0.0.1:9477"]}}]
```

- **What is not known is not on the page**: no series, never 0. A tenant that is gone is gone from the next page.
- While the daemon does not answer, the page has `fairsched_up 0` and the exporter's own metrics, nothing else. The
  daemon is down when `fairsched_up == 0`, or when there is no page (`up{{job="fairsched"}} == 0`).
- Counters begin at 0 with the daemon, but `fairsched_gpu_time_seconds_total`, which survives its restart
  (after `kill -9` it goes on from up to ten seconds earlier: a reset, to Prometheus).
- Base units: seconds, bytes, degrees Celsius; a `_ratio` is 0 to 1. Where a family is called a claim, 1 is yes.
- The text format, or OpenMetrics 1.0 for whoever prefers it; in gzip for whoever takes it. `promtool check metrics`
  finds no fault with it.
- `tenant` is the name in the configuration, `gpu_uuid` the GPU's UUID. `fairsched_gpu_info` has a GPU's index and name:
  `fairsched_gpu_busy_ratio * on (gpu_uuid) group_left (index, name) fairsched_gpu_info`.

## Histograms

Bounds are in seconds, from {float(BOUNDS[0]):.2g} to {float(BOUNDS[-1]):.2g}: each is twice the one before, and from
.0084 to .134 s, where the limit of a queue delay lies, at most 1.25 times. The BPF programs count that finely
everywhere. The 99th percentile of the queue delay of each tenant over five minutes:

```
histogram_quantile(0.99, sum by (le, tenant) (rate(fairsched_queue_delay_seconds_bucket[5m])))
```

A wait, here, is that for one turn of the hardware: [slis.md](slis.md#1-p99-kernel-queue-delay) says how it is found and
what it cannot see. A trainer that always has steps queued is never done, and has next to no queue delay on record. What
is on record of cgroups that are gone stays in the tenant's counts.

## How many series

A tenant on a GPU has {6 + len(BOUNDS) + 3} series, a tenant some 20 besides. The first
`metrics.max_tenants` tenants ({MOST_TENANTS}), by name, are on the page; how many are not is
`fairsched_exporter_tenants_left_out`. They are left out rather than added up: a sum of counters falls when a tenant
goes.

## TLS and passwords

`metrics.web_config` names a file in the format of Prometheus' own exporters (exporter-toolkit's web configuration):

```yaml
tls_server_config:
  cert_file: node.crt            # paths are relative to this file
  key_file: node.key             # chmod 600
  client_auth_type: RequireAndVerifyClientCert   # or VerifyClientCertIfGiven, NoClientCert (the default)
  client_ca_file: clients.crt
  min_version: TLS12             # or TLS13; max_version likewise
basic_auth_users:
  prometheus: $2y$10$...         # htpasswd -nBC 10 prometheus
```

Other keys of that format are errors that name them, because a protection that is asked for and not there is worse
than none. The file is checked when the daemon starts; certificates and users that change are read within a minute, and
a bad file, or a key that does not fit its certificate, then leaves in force all that was. A password needs TLS in
front of it, or loopback. To check one takes a tenth of a second, and one that fits is remembered; when 16 wait to be
checked, others are answered 503, and whoever's password is known has the page at once.

An address that is taken keeps no daemon from starting: `fairsched status` says so, and the exporter tries again after
1, 2, 4 ... 60 seconds.

## Slow and greedy clients

There are {_LIMITS.connections} places for connections. A request ({_LIMITS.request_bytes} bytes at most) has
{_LIMITS.request_s:g} s to arrive, an answer {_LIMITS.answer_s:g} s to be taken, a TLS handshake
{_LIMITS.handshake_s:g} s; between two requests {_LIMITS.idle_s:g} s may pass. When all places are taken, whoever has
made no progress for longest loses his, if that is more than {_LIMITS.grace_s:g} s; newcomers wait meanwhile.
`fairsched_exporter_refused_total` counts what was ended. `make bench-scrape` measures what a page takes, and
what an attack does to the daemon's ticks.

"""


def reference() -> str:
    """The text of docs/metrics.md."""
    return _INTRO + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for title, families in CHAPTERS.items():
        yield f"## {title}\n"
        yield "| Name | Type | Labels | From | |"
        yield "|---|---|---|---|---|"
        yield from map(_line, families)
        yield ""


def _line(family: Family) -> str:
    kind = family.kind.value if family.kind is not Kind.INFO else "info (1)"
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.shown}` | {kind} | {labels} | {family.source} | {family.help} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
