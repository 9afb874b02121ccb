"""Statistics: mean and standard deviation over seeds, and differences with a 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal

from mutua.support.quantiles import LEVEL, t_quantile

BySeed = Mapping[int, float | None]
"""A number of each seed's run; None where the run has none."""
Verdict = Literal["holds", "does not hold", "cannot tell"]
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n − 1): no deviation of one value, and no mean where a value is missing."""

    mean: float | None
    sd: float | None
    n: int

    @staticmethod
    def of(values: Sequence[float | None]) -> Spread:
        """Over all values."""
        known = [value for value in values if value is not None]
        if len(known) < len(values) or not known:
            return Spread(None, None, len(known))
        return Spread(fmean(known), stdev(known) if len(known) > 1 else None, len(known))

    @property
    def next(self) -> tuple[float, float] | None:
        """The 95 % interval for one more such value, by Student's t; None where there is no deviation."""
        if self.mean is None or self.sd is None:
            return None
        half = t_quantile(self.n - 1) * self.sd * math.sqrt(1 + 1 / self.n)
        return self.mean - half, self.mean + half


def paired(a: BySeed, b: BySeed) -> tuple[list[float | None], list[float | None]]:
    """Both numbers in the seeds that both have."""
    both = [seed for seed in a if seed in b]
    return [a[seed] for seed in both], [b[seed] for seed in both]


@dataclass(frozen=True)
class Difference(Spread):
    """A mean of differences and its 95 % interval."""

    low: float | None
    high: float | None

    @staticmethod
    def of_pairs(a: Sequence[float | None], b: Sequence[float | None]) -> Difference:
        """Of a − b, seed by seed, by Student's t; a pair without one of its values is left out."""
        pairs = zip(a, b, strict=True)
        found = Spread.of([x - y for x, y in pairs if x is not None and y is not None])
        if found.mean is None or found.sd is None:
            return Difference(found.mean, found.sd, found.n, None, None)
        half = t_quantile(found.n - 1) * found.sd / math.sqrt(found.n)
        return Difference(found.mean, found.sd, found.n, found.mean - half, found.mean + half)

    @staticmethod
    def of_shares(a: float, b: float, n: int) -> Difference:
        """Of two accuracies on n samples each, by Agresti and Caffo (2000): one run has no spread over seeds.

        Where both are of the same samples, the interval is wider than it need be.
        """
        shares = [(share * n + 1) / (n + 2) for share in (a, b)]
        half = _Z * math.sqrt(sum(share * (1 - share) / (n + 2) for share in shares))
        middle = shares[0] - shares[1]
        return Difference(a - b, None, 1, middle - half, middle + half)

    def within(self, most: float) -> Difference:
        """The same with its interval cut to ± `most`: two accuracies cannot differ by more than 1."""
        low, high = (None if end is None else min(most, max(-most, end)) for end in (self.low, self.high))
        return Difference(self.mean, self.sd, self.n, low, high)

    def shifted(self, by: float) -> Difference:
        """The same difference with `by` added."""
        mean, low, high = (None if value is None else value + by for value in (self.mean, self.low, self.high))
        return Difference(mean, self.sd, self.n, low, high)

    @property
    def verdict(self) -> Verdict:
        """Whether it is above 0: the whole interval is, none of it is, or one cannot tell."""
        if self.low is None or self.high is None:
            return "cannot tell"
        return "holds" if self.low > 0 else "does not hold" if self.high < 0 else "cannot tell"


def better_or_worse(low: float, high: float, lower_is_better: bool = False) -> str:
    """What a 95 % interval of a difference says; nothing but 0 is in it if both are equal in every seed."""
    if low == high == 0:
        return "equal"
    if lower_is_better:
        low, high = -high, -low
    return "better" if low > 0 else "worse" if high < 0 else "cannot tell"
