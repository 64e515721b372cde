# SPDX-License-Identifier: GPL-2.0
"""The parts of bench/report: records, statistics, traces, plots and the texts made of them."""
