# SPDX-License-Identifier: Apache-2.0
"""``fairsched report``: a stretch of the past as one page with plots, for people who prefer pictures.

Problem: the page is mailed, printed and opened in ten years on a machine without a network, in the dark and in
daylight, by people who see colours differently; and a node has no plotting library.

Approach: the plots are inline SVG, drawn here from plain series, coloured by the page's own style sheet; nothing is
loaded from anywhere and nothing runs. Lines differ in dash as well as in colour, and every number stands in a table
below.

charts.py  the past -> which plots, with which lines; pure
scale.py   ticks of an axis; pure
svg.py     a plot as SVG; pure
page.py    the page; pure
png.py     the same plots with matplotlib, where a file name ends in .png
"""
