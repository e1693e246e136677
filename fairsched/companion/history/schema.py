# SPDX-License-Identifier: Apache-2.0
"""The tables. `t` is the end of an interval in whole Unix seconds; names are kept once and referred to by number.

Ratios are parts of one GPU, averaged over the interval; `gpu_time_s` is the difference of a counter and exact. A value
that is not known is NULL.
"""

from __future__ import annotations

VERSION = 1
"""Of the tables; in the file's user_version. A file of another version is set aside."""
PAGE_BYTES = 4096

TABLES = """
CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE node (
  t INTEGER PRIMARY KEY, span_s REAL NOT NULL, mode TEXT NOT NULL, is_gapless INTEGER NOT NULL,
  fairness_error_ratio REAL, queue_delay_p99_ms REAL, sm_utilization_stdev_ratio REAL,
  token_rate_cv_ratio REAL, cpu_ratio REAL);
CREATE TABLE gpu (
  t INTEGER NOT NULL, gpu INTEGER NOT NULL, busy_ratio REAL, unmanaged_ratio REAL,
  memory_used_bytes INTEGER, memory_total_bytes INTEGER, PRIMARY KEY (t, gpu)) WITHOUT ROWID;
CREATE TABLE tenant (
  t INTEGER NOT NULL, tenant INTEGER NOT NULL, state TEXT NOT NULL, weight REAL NOT NULL, held_s REAL,
  queue_delay_p50_ms REAL, queue_delay_p99_ms REAL, tokens_per_s REAL, vram_bytes INTEGER,
  PRIMARY KEY (t, tenant)) WITHOUT ROWID;
CREATE TABLE share (
  t INTEGER NOT NULL, tenant INTEGER NOT NULL, gpu INTEGER NOT NULL, used_ratio REAL, entitled_ratio REAL,
  lag_ms REAL, gpu_time_s REAL, PRIMARY KEY (t, tenant, gpu)) WITHOUT ROWID;
CREATE TABLE decision (
  t INTEGER NOT NULL, tenant INTEGER NOT NULL, action TEXT NOT NULL, reason TEXT NOT NULL,
  is_dry_run INTEGER NOT NULL, count INTEGER NOT NULL, failed INTEGER NOT NULL, held_s REAL,
  PRIMARY KEY (t, tenant, action, reason, is_dry_run)) WITHOUT ROWID;
"""
BY_TIME = ("node", "gpu", "tenant", "share", "decision")
"""The tables whose rows are of an interval, and are dropped by it."""
