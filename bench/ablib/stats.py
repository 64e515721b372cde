# SPDX-License-Identifier: GPL-2.0
"""The comparison of two sides by pairs of runs.

For each pair the logarithm of a ratio is taken: baseline/side where less is better, side/baseline where more is better. So more than 0
is better.

    estimate  Hodges-Lehmann: the median of the Walsh averages, the means of any two logarithms (of each with itself, too)
    interval  from the Walsh averages in order: the narrowest pair of them, as far from one end as from the other, whose coverage by
              the exact signed-rank distribution is at least 95 %. There is none for fewer than 6 pairs
    p         the exact Wilcoxon signed-rank test, two-sided. Equal differences share the mean of their ranks. Differences of 0 have
              ranks, but no sign (Pratt). The distribution is that of all 2^n signs, given these ranks; it is computed, not sampled, for
              any number of pairs
    q         p after Benjamini and Hochberg, over the rows of a table

Several hosts are combined by random effects. The effect of a host is the mean of its logarithms; its variance is that of the mean. The
variance between hosts is DerSimonian and Laird's estimate. The interval (95 %) and p are Hartung and Knapp's, by t with one degree of
freedom fewer than hosts. Their variance is 0 if all effects are equal; then the usual one of random effects stands for it.
Heterogeneity: Cochran's Q, its p by chi-squared, and I^2, the share of the spread of the effects that is not chance within hosts.
"""

import math
from dataclasses import dataclass
from typing import Optional, Sequence

import numpy
from scipy.optimize import brentq
from scipy.stats import chi2, nct, norm, t

ALPHA = 0.05
# The probability with which a number of pairs is to show a difference.
POWER = 0.9
# Logarithms that differ by less than this are equal: they may come from decimals of a few digits.
TIE = 1e-11


@dataclass(frozen=True)
class Interval:
    """LOW to HIGH; COVERAGE (0 to 1) is the probability that it has the true value."""

    low: float
    high: float
    coverage: float


@dataclass(frozen=True)
class Comparison:
    """A side against the baseline: estimate (a log ratio), its interval, and p."""

    pairs: int
    estimate: float
    interval: Optional[Interval]
    p: float


@dataclass(frozen=True)
class Combination:
    """Several hosts: the estimate (a log ratio), its interval and p; Q, its degrees of freedom and p; I^2 (0 to 1); the variance between
    hosts."""

    hosts: int
    estimate: float
    interval: Interval
    p: float
    q: float
    df: int
    q_p: float
    i2: float
    tau2: float


def effect(differences: Sequence[float]) -> tuple[float, float]:
    """The mean of two values or more, and the variance of the mean."""
    values = numpy.asarray(differences, dtype=float)
    return float(values.mean()), float(values.var(ddof=1)) / len(values)


def combine(effects: Sequence[tuple[float, float]]) -> Combination:
    """Combines two effects or more: (value, variance)."""
    values = numpy.array([value for value, _ in effects])
    # A variance of 0 would have an infinite weight.
    variances = numpy.array([max(variance, TIE**2) for _, variance in effects])
    df = len(values) - 1
    weights = 1 / variances
    q = float((weights * (values - numpy.average(values, weights=weights))**2).sum())
    # The sum of the weights less the sum of their squares divided by it, without the difference of large numbers.
    scale = sum(2 * weights[i] * weights[j] for i in range(df + 1) for j in range(i)) / weights.sum()
    tau2 = max(0.0, (q - df) / scale)
    weights = 1 / (variances + tau2)
    estimate = float(numpy.average(values, weights=weights))
    scatter = float((weights * (values - estimate)**2).sum()) / df if numpy.ptp(values) > TIE else 1.0
    error = math.sqrt(scatter / weights.sum())
    half = float(t.ppf(1 - ALPHA / 2, df)) * error
    return Combination(len(values), estimate, Interval(estimate - half, estimate + half, 1 - ALPHA),
                       float(2 * t.sf(abs(estimate) / error, df)), q, df, float(chi2.sf(q, df)), max(0.0, 1 - df / q) if q else 0.0, tau2)


def sign_sums(ranks: Sequence[int]) -> numpy.ndarray:
    """The probability of each sum of a part of RANKS if each rank is in it with probability 1/2."""
    chances = numpy.zeros(sum(ranks) + 1)
    chances[0] = 1
    for rank in ranks:
        shifted = numpy.zeros_like(chances)
        shifted[rank:] = chances[:len(chances) - rank]
        chances = (chances + shifted) / 2
    return chances


def doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, from 1; equal ones share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    start = 0
    for i in range(1, len(order) + 1):
        if i == len(order) or values[order[i]] - values[order[i - 1]] > TIE:
            for j in order[start:i]:
                ranks[j] = start + 1 + i
            start = i
    return ranks


def p_value(differences: Sequence[float]) -> float:
    """Two-sided p of the signed-rank test."""
    ranks = doubled_ranks([abs(difference) for difference in differences])
    signed = [(rank, difference) for rank, difference in zip(ranks, differences) if abs(difference) > TIE]
    if not signed:
        return 1.0
    chances = sign_sums([rank for rank, _ in signed])
    at = sum(rank for rank, difference in signed if difference > 0)
    return min(1.0, 2 * float(min(chances[:at + 1].sum(), chances[at:].sum())))


def smallest_p(pairs: int) -> float:
    """The smallest two-sided p that so many pairs can have."""
    return min(1.0, 2.0 ** (1 - pairs))


def walsh_averages(differences: Sequence[float]) -> numpy.ndarray:
    """The means of any two of the values, in order."""
    values = numpy.asarray(differences, dtype=float)
    first, second = numpy.triu_indices(len(values))
    return numpy.sort((values[first] + values[second]) / 2)


def interval(differences: Sequence[float]) -> Optional[Interval]:
    """The interval of the estimate; None for too few pairs."""
    n = len(differences)
    if n < 2 or smallest_p(n) > ALPHA:
        return None
    tails = numpy.cumsum(sign_sums(range(1, n + 1)))
    # The interval from the Kth average to the Kth from the end leaves out K - 1 at each end: P(sum < K) on each side.
    k = int(numpy.searchsorted(tails, ALPHA / 2, side="right"))
    averages = walsh_averages(differences)
    return Interval(float(averages[k - 1]), float(averages[-k]), 1 - 2 * float(tails[k - 1]))


def log_ratios(base: Sequence[float], side: Sequence[float], more: bool = False) -> list[float]:
    """Of pairs of values above 0: how much better, as the logarithm of a ratio."""
    return [math.log(y / x) if more else math.log(x / y) for x, y in zip(base, side)]


def compare(base: Sequence[float], side: Sequence[float], more: bool = False) -> Comparison:
    """Compares the values of pairs, all above 0; there must be one at least."""
    differences = log_ratios(base, side, more)
    return Comparison(len(differences), float(numpy.median(walsh_averages(differences))), interval(differences), p_value(differences))


def power(difference: float, spread: float, pairs: int) -> float:
    """The probability that so many pairs show this log ratio with p < ALPHA, if log ratios have this standard deviation. By the t test,
    of which the signed-rank test needs a twentieth more pairs."""
    limit, df, shift = t.ppf(1 - ALPHA / 2, pairs - 1), pairs - 1, difference / spread * math.sqrt(pairs)
    with numpy.errstate(divide="ignore"):
        # The second is nct.cdf(-limit, df, shift), which is not a number for some large shifts in scipy 1.15.
        return float(nct.sf(limit, df, shift) + nct.sf(limit, df, -shift))


def pairs_for(difference: float, spread: float, want: float = POWER) -> int:
    """The number of pairs that show this log ratio with the probability WANT, from 6 on, which is the smallest number that can."""
    pairs = max(6, math.ceil((norm.ppf(1 - ALPHA / 2) + norm.ppf(want))**2 * (spread / difference)**2) - 1)
    while power(difference, spread, pairs) < want:
        pairs += 1
    return pairs


def shown_by(pairs: int, spread: float, want: float = POWER) -> float:
    """The log ratio that so many pairs show with the probability WANT."""
    return float(brentq(lambda difference: power(difference, spread, pairs) - want, 0, 50 * spread)) if spread > TIE else 0.0


def percent(log_ratio: float) -> float:
    """How much better, in %, from the logarithm of a ratio."""
    return 100 * math.expm1(log_ratio)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """The q of each p: the smallest rate of false discoveries at which it is still found."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    q_values, smallest = [0.0] * len(p_values), 1.0
    for place in range(len(order), 0, -1):
        smallest = min(smallest, p_values[order[place - 1]] * len(order) / place)
        q_values[order[place - 1]] = smallest
    return q_values
