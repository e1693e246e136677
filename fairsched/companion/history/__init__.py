# SPDX-License-Identifier: Apache-2.0
"""The past of a node, as ``fairsched report`` draws it.

Problem: an operator asks on Monday what happened on Saturday, on a node where nothing else keeps metrics; and
whatever keeps the past must never fill a disk, never stop for a damaged file, and never cost the daemon anything.

Approach: the companion (not the daemon) writes one row per tenant and GPU for each interval into an SQLite
database, bounded by age and by bytes. It can be lost without harm, so a file that cannot be read is set aside and
another one begun.

collect.py  the moments of one interval -> one set of rows; pure
schema.py   the tables
store.py    the database: written, bounded, mended
part.py     the companion's part
read.py     the database for a reader: the past as series
"""
