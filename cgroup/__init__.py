# SPDX-License-Identifier: Apache-2.0
"""The hands: everything fairsched does to cgroup v2. Import it as ``fairsched.cgroup``.

Nothing is imported here: the guardian must stay small and takes only the modules it needs.
See README.md in this directory for the table of modules and the rules.
"""
