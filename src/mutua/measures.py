"""Measures: numbers of a finished run, by name, as published tables and claims use them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import NamedTuple

from mutua.errors import InputError, suggest

CURVES = ("global", "predictor", "global_own")
"""What is measured at every evaluation, so that it can reach a value or settle."""
ABOUT = {
    "global": "the global on the common test set",
    "predictor": "the clients' predictors on their own test data, mean over clients",
    "global_own": "the global on the clients' own test data, mean over clients",
    "wdp": "the predictors within their own domains, mean over clients",
    "cdp": "the predictors across the other domains, mean over clients",
    "acc": "the predictors over all domains, mean over clients",
    "worst": "the worst client's predictor on its own test data",
    "spread_clients": "standard deviation over clients of their predictors' accuracy",
    "better_off": "share of clients whose predictor is better than the same client's alone",
    "rounds_to": "rounds until a curve first reaches x percent: rounds_to(80), rounds_to(80, predictor)",
    "bytes_to": "bytes that all clients sent until then: bytes_to(80), bytes_to(80, predictor)",
    "spread_last_20": "standard deviation over a curve's last 20 evaluations: spread_last_20(predictor)",
    "bytes_up": "bytes that a client sends a round",
    "bytes_down": "bytes that a client receives a round",
}
OF_CLIENTS = ("predictor", "global_own", "wdp", "cdp", "acc", "worst", "spread_clients", "better_off")
"""Those that may name clients: acc(photo), predictor(c0 c1) is the mean of two."""
REACHING = ("rounds_to", "bytes_to")
CALL = re.compile(r"^([a-z_0-9]+)(?:\((.*)\))?$")


class Measure(NamedTuple):
    """A measure with what stands in its brackets."""

    name: str
    x: float = 0.0
    curve: str = "global"
    clients: tuple[str, ...] = ()

    @staticmethod
    def of(text: object) -> Measure:
        """Read a measure as it is written, such as `acc`, `predictor(c0 c1)` or `rounds_to(80, predictor)`."""
        found = CALL.match(text) if isinstance(text, str) else None
        if found is None or found[1] not in ABOUT:
            raise InputError(f"measure: {text!r} is not a measure; {suggest(str(text), list(ABOUT))}")
        name, given = found[1], (found[2] or "").replace(",", " ").split()
        if name in OF_CLIENTS:
            return Measure(name, clients=tuple(given))
        x = 0.0
        if name in REACHING:
            with suppress(ValueError):
                x = float(given.pop(0) if given else 0)
            if not 1 < x <= 100:
                raise InputError(f"measure: {text!r} needs an accuracy in percent, such as {name}(80)")
        curve = given.pop(0) if given and name in (*REACHING, "spread_last_20") else "global"
        if given or curve not in CURVES:
            raise InputError(f"measure: {text!r}; {name} is {ABOUT[name]}; curves are {', '.join(CURVES)}")
        return Measure(name, x, curve)


def check(text: object) -> object:
    """The text, if it is a measure's."""
    Measure.of(text)
    return text
