"""The ε of many uses of the Gaussian mechanism: by a tight accountant, and by Rényi differential privacy."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from mutua.errors import InputError


class Uses(NamedTuple):
    """Uses of the Gaussian mechanism: noise divided by sensitivity, the sampling rate, and how many times."""

    noise: float
    rate: float
    times: int


Mechanism = tuple[Uses, ...]
"""All uses of one client's data, or of one example."""


Account = Callable[[Mechanism, float], float]


def epsilon(uses: Iterable[Uses], delta: float) -> float:
    """ε of these uses together: exact if nothing is sampled, otherwise by privacy loss distributions (PLD)."""
    uses = _joined(uses)
    if all(use.rate == 1 for use in uses):
        # Many Gaussian mechanisms are one, and its ε has a closed form: Balle and Wang 2018, Theorem 8.
        with without_warnings():
            return float(accounting().get_epsilon_gaussian(_precision(uses) ** -0.5, delta)) if uses else 0.0
    bound = rdp(uses, delta)
    if not PLD_FROM < bound < PLD_TO or delta < PLD_DELTA:
        return bound
    fine = accounting().pld.PLDAccountant(value_discretization_interval=bound * 1e-4)
    return min(bound, _composed(fine, uses, delta))


PLD_FROM, PLD_TO, PLD_DELTA = 1e-3, 1e3, 1e-12
"""Outside of these PLD's grid is too coarse or too long, or its sums not exact enough; RDP's bound is used."""


def rdp(uses: Iterable[Uses], delta: float, orders: Sequence[float] | None = None) -> float:
    """ε of these uses together by Rényi differential privacy (RDP): an upper bound, for any orders."""
    return _composed(accounting().rdp.RdpAccountant(orders), _joined(uses), delta)


def largest(mechanisms: Iterable[Mechanism], delta: float, account: Account) -> float:
    """The largest ε of these. Most are ruled out by a bound that takes a hundredth of the time."""
    different = set(map(_joined, mechanisms))
    if all(use.rate == 1 for uses in different for use in uses):
        return account(max(different, key=_precision, default=()), delta)
    bounds = {uses: rdp(uses, delta, QUICK) for uses in different}
    most = 0.0
    for uses, bound in sorted(bounds.items(), key=lambda item: -item[1]):
        if bound <= most:
            break
        most = max(most, account(uses, delta))
    return most


QUICK = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
"""Orders at which RDP needs no series."""


def _precision(uses: Mechanism) -> float:
    """1/σ² of the single Gaussian mechanism that equals all of them, if nothing is sampled."""
    return sum(use.times / use.noise**2 for use in uses)


def _joined(uses: Iterable[Uses]) -> Mechanism:
    """The same uses, with each pair of noise and rate once."""
    times: Counter[tuple[float, float]] = Counter()
    for use in uses:
        times[use.noise, use.rate] += use.times
    return tuple(Uses(*use, number) for use, number in sorted(times.items()) if number)


def _composed(accountant: Any, uses: Mechanism, delta: float) -> float:
    library = accounting()
    with without_warnings():
        for use in uses:
            event = library.GaussianDpEvent(use.noise)
            if use.rate < 1:
                event = library.PoissonSampledDpEvent(use.rate, event)
            accountant.compose(event, use.times)
        return float(accountant.get_epsilon(delta))


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hide the library's warnings about orders that it leaves out: the bound holds with the others."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def accounting() -> Any:
    """The library of accountants; an error says how to install it."""
    try:
        import dp_accounting
    except ImportError:
        raise InputError('privacy: its accountants are not here; pip install "mutua[dp]"') from None
    return dp_accounting
