# SPDX-License-Identifier: GPL-2.0
"""Medians, intervals and the test of whether two sides differ.

The test is the two-sided Mann-Whitney test. It uses the order of the times only. Up to EXACT_PAIRS pairs of runs it is exact,
also with ties. The interval of the speedup has all factors f for which the test finds no significant difference between the
times of the baseline and f times those of the other side. So a speedup of 0 is outside the interval exactly if p is below ALPHA.
The interval of a median is one of order statistics.
"""

import functools
import math
from dataclasses import dataclass
from typing import Optional, Sequence

import numpy
import scipy.stats

ALPHA = 0.05
EXACT_PAIRS = 2500
# Logarithms of times that differ by less than this are equal: the times have a few digits only.
TIE = 1e-11


@dataclass
class Interval:
    """LOW to HIGH has the true value with CONFIDENCE (0 to 1)."""

    low: float
    high: float
    confidence: float


@dataclass
class Comparison:
    """A side against the baseline: %speedup, its interval (%), and p; None if there are too few runs. GAIN: the times of the
    side rank lower."""

    speedup: Optional[float]
    interval: Optional[Interval]
    p: Optional[float]
    gain: bool = False

    @property
    def verdict(self) -> str:
        if self.p is None:
            return "-"
        if self.p >= ALPHA:
            return "same?"
        return "GAIN" if self.gain else "LOSS"


def median(values: Sequence[float]) -> float:
    return float(numpy.median(values))


def median_interval(values: Sequence[float]) -> Optional[Interval]:
    """The narrowest interval of order statistics with at least 95 %, or the whole range if there is none."""
    n = len(values)
    if n < 2:
        return None
    ordered = sorted(values)
    k = max(1, int(scipy.stats.binom.ppf(ALPHA / 2, n, 0.5)))
    return Interval(ordered[k - 1], ordered[n - k], 1 - 2 * float(scipy.stats.binom.cdf(k - 1, n, 0.5)))


def doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, from 1; equal values have the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    start = 0
    for i in range(1, len(order) + 1):
        if i == len(order) or values[order[i]] - values[order[i - 1]] > TIE:
            for j in order[start:i]:
                ranks[j] = start + 1 + i
            start = i
    return ranks


@functools.lru_cache(maxsize=4096)
def rank_sums(ranks: tuple[int, ...], n: int) -> numpy.ndarray:
    """The probability of each sum of N of the RANKS, if all choices of N have the same probability."""
    ways = numpy.zeros((n + 1, sum(ranks) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank]
    return ways[n] / ways[n].sum()


def p_of_ranks(base: Sequence[int], new: Sequence[int]) -> float:
    """Two-sided p of the Mann-Whitney test from the (doubled) ranks."""
    if len(base) * len(new) > EXACT_PAIRS:
        return float(scipy.stats.mannwhitneyu(base, new, alternative="two-sided", method="asymptotic").pvalue)
    chances = rank_sums(tuple(sorted([*base, *new])), len(base))
    at = sum(base)
    return min(1.0, 2 * float(min(chances[:at + 1].sum(), chances[at:].sum())))


def p_value(base: Sequence[float], new: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney test."""
    if len(base) * len(new) <= EXACT_PAIRS and len({*base, *new}) == len(base) + len(new):
        return float(scipy.stats.mannwhitneyu(base, new, alternative="two-sided", method="exact").pvalue)
    ranks = doubled_ranks([*base, *new])
    return p_of_ranks(ranks[:len(base)], ranks[len(base):])


def smallest_p(n: int, m: int) -> float:
    """The smallest two-sided p that is possible with N and M runs."""
    return 2 / math.comb(n + m, n)


def nominal_confidence(n: int, m: int) -> float:
    """The confidence of shift_interval() without ties."""
    if n * m > EXACT_PAIRS:
        return 1 - ALPHA
    tail = numpy.cumsum(rank_sums(tuple(range(2, 2 * (n + m) + 1, 2)), n)) * 2
    return 1 - float(max(tail[(tail > 0) & (tail < ALPHA)], default=smallest_p(n, m)))


def shift_interval(base: Sequence[float], new: Sequence[float]) -> Interval:
    """The shifts of NEW upwards for which the test finds no significant difference from BASE. With so few runs that p is never
    significant: the shifts for which NEW and BASE overlap."""
    differences = sorted(x - y for x in base for y in new)
    points = [differences[0]] + [b for a, b in zip(differences, differences[1:]) if b - a > TIE]

    def possible(shift: float) -> bool:
        ranks = doubled_ranks([x - shift for x in base] + list(new))
        return p_of_ranks(ranks[:len(base)], ranks[len(base):]) >= ALPHA

    inside = [shift for shift in points if possible(shift)]
    for low, high in zip(points, points[1:]):
        if possible((low + high) / 2):
            inside += [low, high]
    return Interval(min(inside), max(inside), nominal_confidence(len(base), len(new)))


def percent(log_ratio: float) -> float:
    """The speedup in % of a logarithm of time before / time after."""
    return 100 * math.expm1(log_ratio)


def compare(base: Sequence[float], new: Sequence[float]) -> Comparison:
    """Compares the times (s) of two sides."""
    if not base or not new or min(*base, *new) <= 0:
        return Comparison(None, None, None)
    speedup = 100 * (median(base) / median(new) - 1)
    if len(base) < 2 or len(new) < 2:
        return Comparison(speedup, None, None)
    shift = shift_interval([math.log(x) for x in base], [math.log(x) for x in new])
    interval = Interval(percent(shift.low), percent(shift.high), shift.confidence)
    ranks = doubled_ranks([*base, *new])
    above = sum(ranks[:len(base)]) / len(base) > sum(ranks[len(base):]) / len(new)
    return Comparison(speedup, interval, p_value(base, new), above)
