# SPDX-License-Identifier: Apache-2.0
"""The configuration: one file, one schema, and the overrides made at run time.

load(path) -> Config            read and validate; ConfigError says file, line, key, remedy
Config.tenant_specs()           what policy wants to know
CgroupOwners(config).owner(p)   whose cgroup is this
load_overrides / save_overrides what `fairsched tenant set` changed
diff(old, new)                  what a reload changed, for the log
keep_started(new, old)          what of a reload waits for the next start
render(config), schema()        the effective configuration; the JSON schema
"""

from fairsched.config.loader import DEFAULT_PATH, InvalidConfig, Problem, from_bytes, load
from fairsched.config.models import Config, Log
from fairsched.config.overrides import Overrides, check_set, check_values, load_overrides, save_overrides
from fairsched.config.owners import CgroupOwner, CgroupOwners
from fairsched.config.views import PLACES, Change, Setting, diff, keep_started, list_settings, render, schema

__all__ = [
    "DEFAULT_PATH",
    "PLACES",
    "CgroupOwner",
    "CgroupOwners",
    "Change",
    "Config",
    "InvalidConfig",
    "Log",
    "Overrides",
    "Problem",
    "Setting",
    "check_set",
    "check_values",
    "diff",
    "from_bytes",
    "keep_started",
    "list_settings",
    "load",
    "load_overrides",
    "render",
    "save_overrides",
    "schema",
]
