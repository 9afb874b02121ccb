"""Is a client better off for having joined? Its models side by side on the same test samples of its own.

Every number has a 95 % interval, and every difference from the model trained alone a paired one. Which model to
serve is chosen on validation samples, so that the test samples judge it fairly; only if they show that it is worse
than alone, alone is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from mutua.errors import InputError, suggest
from mutua.learning.expert_weights import regret_bounds
from mutua.learning.headline import Headline
from mutua.learning.intervals import by_paired_bootstrap, of_paired_shares
from mutua.learning.task_behaviour import Task
from mutua.models.composite import Composite, Weighted

Finding = Literal["better", "worse", "cannot tell"]


@dataclass(frozen=True)
class ModelScore:
    """How good one model is on the test samples: the task's headline metric and its 95 % interval."""

    model: str
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Gain:
    """By how much a model is better than the one trained alone; below 0 it is worse, also where less is better."""

    model: str
    value: float | None
    low: float | None
    high: float | None

    @property
    def finding(self) -> Finding:
        """Better or worse where the whole interval is on one side of 0."""
        if self.low is None or self.high is None:
            return "cannot tell"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "cannot tell"


@dataclass(frozen=True)
class Trust:
    """How much a mixture of experts trusts one of them, and what it cannot lose to it."""

    model: str
    weight: float
    regret: float | None
    """By how many nats at most the mixture's log-loss on all validation samples, in order, exceeds its own."""


def trusts(model: nn.Module) -> tuple[Trust, ...]:
    """Of a mixture with fixed weights, one for each of its experts; of any other model none."""
    if not (isinstance(model, Composite) and isinstance(model.rule, Weighted)):
        return ()
    prior = model.rule.options.get("prior")
    bounds = [None] * len(model.names) if prior is None else regret_bounds(prior)
    return tuple(map(Trust, model.names, model.rule.weights.tolist(), bounds))


@dataclass(frozen=True)
class Benefit:
    """What joining has given one client."""

    headline: Headline
    samples: int
    """How many test samples."""
    scores: tuple[ModelScore, ...]
    gains: tuple[Gain, ...]
    """Of every model except `alone`."""
    joined: str
    """The model that stands for having joined."""
    alone: str
    serve: str
    """The model to serve."""
    noun: str = "samples"
    """What samples are called: "patients"."""
    experts: tuple[Trust, ...] = ()
    """If it serves with a mixture of weighed experts, each of them."""

    @staticmethod
    def of(
        task: Task,
        predictions: Mapping[str, Tensor],
        y: Tensor,
        *,
        joined: str,
        serve: str | None = None,
        alone: str = "alone",
        noun: str = "samples",
        experts: tuple[Trust, ...] = (),
    ) -> Benefit:
        """Compare models by what they say of the same test samples (`task.predictions`).

        `joined` is what the client has for having joined. `serve` is what was chosen without the test samples, by
        default `joined`; `best_of` chooses on validation samples.
        """
        for name in (joined, alone, serve or joined):
            if name not in predictions:
                raise InputError(f"benefit: no predictions of '{name}'; {suggest(name, predictions)}")
        metric = task.headline.metric
        scores, gains = [], []
        for name, said in predictions.items():
            low, high = task.interval(metric, said, y) or (None, None)
            scores.append(ModelScore(name, task.metrics(said, y)[metric], low, high))
            if name != alone:
                gains.append(_gain(task, name, said, predictions[alone], y))
        finding = next(gain.finding for gain in gains if gain.model == joined)
        served = alone if finding == "worse" else serve or joined
        return Benefit(task.headline, len(y), tuple(scores), tuple(gains), joined, alone, served, noun, experts)

    @property
    def gain(self) -> Gain:
        """Of `joined` over `alone`."""
        return next(gain for gain in self.gains if gain.model == self.joined)

    @property
    def finding(self) -> Finding:
        """Whether the client is better off for having joined."""
        return self.gain.finding

    @property
    def sentence(self) -> str:
        """The answer for somebody who decides, and is no statistician."""
        with_what = f"{self.samples:,} test {self.noun}"
        gain = self.gain
        if gain.value is None or gain.low is None or gain.high is None:
            return f"Whether joining helped cannot be said with {with_what}."
        difference = f"{_amount(self.headline, gain.value, self.noun)}, 95 % interval {self._ends(gain)}"
        match gain.finding:
            case "better":
                return f"Joining helped: {difference}, with {with_what}."
            case "worse":
                return f"Joining did harm: {difference}, with {with_what}."
        return f"No difference from training alone can be shown with {with_what}: {difference}."

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: each model, its metric with the interval, and its gain over `alone` with the paired one."""
        gains = {gain.model: gain for gain in self.gains}
        return [
            (
                one.model,
                self._between(one, ""),
                "" if one.model == self.alone else self._between(gains[one.model], "+"),
            )
            for one in self.scores
        ]

    def _between(self, found: ModelScore | Gain, sign: str) -> str:
        if found.value is None:
            return "-"

        def shown(value: float) -> str:
            return ("+" if sign and value >= 0 else "") + _number(self.headline, value)

        if found.low is None or found.high is None:
            return shown(found.value)
        return f"{shown(found.value)} ({shown(found.low)} to {shown(found.high)})"

    def summary(self) -> dict[str, Any]:
        """Everything, for JSON."""
        models = {one.model: {"value": one.value, "low": one.low, "high": one.high} for one in self.scores}
        gains = {one.model: {"value": one.value, "low": one.low, "high": one.high} for one in self.gains}
        found = {"metric": self.headline.metric, "test_samples": self.samples, "models": models, "gains": gains}
        chosen: dict[str, Any] = {"joined": self.joined, "alone": self.alone, "serve": self.serve}
        if self.experts:
            experts = {one.model: {"weight": one.weight, "regret": one.regret} for one in self.experts}
            chosen |= {"experts": experts}
        return {**found, **chosen, "finding": self.finding, "sentence": self.sentence}

    @staticmethod
    def read(told: Mapping[str, Any], noun: str = "samples") -> Benefit:
        """What `summary` wrote."""
        scores, gains = (told["models"].items(), told["gains"].items())
        return Benefit(
            Headline(str(told["metric"])),
            int(told["test_samples"]),
            tuple(ModelScore(name, **found) for name, found in scores),
            tuple(Gain(name, **found) for name, found in gains),
            str(told["joined"]),
            str(told["alone"]),
            str(told["serve"]),
            noun,
            tuple(Trust(name, **found) for name, found in told.get("experts", {}).items()),
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, whose: str = "its") -> list[str]:
        """The whole certificate, for people: a table, how much experts are trusted, and the sentence."""
        rows = self.rows()
        width, second = (max(len(row[k]) for row in rows) for k in (0, 1))
        found = [
            f"{self.headline.title} on {self.samples:,} test {self.noun} of {whose} own, with 95 % intervals:"
        ]
        for name, score, gain in rows:
            against = f"  {gain} against {self.alone}" if gain else ""
            found.append(f"  {name:<{width}}  {score:<{second}}{against}".rstrip())
        return [*found, *self.trust, self.sentence, f"serve: {self.serve}"]

    @property
    def trust(self) -> list[str]:
        """How much each expert is trusted and what the mixture cannot lose to it, for people."""
        if not self.experts:
            return []
        said = [f"trust: {', '.join(f'{name} {100 * one.weight:.0f} %' for name, one in self.trusted.items())}"]
        if bounds := [f"{name} {one.regret:.1f}" for name, one in self.trusted.items() if one.regret is not None]:
            said.append(f"log-loss on validation samples, in all at most so many nats above: {', '.join(bounds)}")
        return said

    @property
    def trusted(self) -> dict[str, Trust]:
        """The experts by the names of their scores: the one that learned alone is `alone`, and not there twice."""
        names = {} if any(one.model == "personal" for one in self.scores) else {"personal": self.alone}
        return {names.get(one.model, one.model): one for one in self.experts}

    def _ends(self, gain: Gain) -> str:
        """The interval, counted in the direction in which the sentence speaks."""
        assert gain.value is not None
        assert gain.low is not None
        assert gain.high is not None
        ends = (gain.low, gain.high) if gain.value >= 0 else (-gain.high, -gain.low)
        return " to ".join(_number(self.headline, end) for end in ends)


def best_of(task: Task, predictions: Mapping[str, Tensor], y: Tensor) -> str:
    """The name of the model that is best on these samples; of equals, and without samples, the first."""
    found = {name: task.metrics(said, y)[task.headline.metric] for name, said in predictions.items()}
    known = [(name, value) for name, value in found.items() if value is not None]
    return task.headline.best(known) if known else next(iter(predictions))


def _gain(task: Task, name: str, said: Tensor, alone: Tensor, y: Tensor) -> Gain:
    headline = task.headline
    own, other = (task.metrics(one, y)[headline.metric] for one in (said, alone))
    if own is None or other is None:
        return Gain(name, None, None, None)
    if headline.metric == "accuracy" and type(task) is Task:
        right, also = (one.argmax(1) == y for one in (said, alone))
        ends = of_paired_shares(int((right & ~also).sum()), int((also & ~right).sum()), len(y))
    else:
        ends = by_paired_bootstrap(lambda one, true: task.metrics(one, true)[headline.metric], said, alone, y)
        if ends is not None and headline.lower_is_better:
            ends = -ends[1], -ends[0]
        if ends is not None and headline.in_percent:
            ends = max(-1.0, ends[0]), min(1.0, ends[1])
    return Gain(name, headline.gain(own, other), *(ends or (None, None)))


def _number(headline: Headline, value: float) -> str:
    value = round(100 * value, 1) if headline.in_percent else value
    return f"{value + 0.0:.1f}" if headline.in_percent else f"{value:.4g}"  # + 0.0: never "-0.0"


def _amount(headline: Headline, gain: float, noun: str) -> str:
    """`3.1 more of 100 patients are classified correctly`, or `AUROC is 2.0 points higher`."""
    number, more = _number(headline, abs(gain)), (gain >= 0) is not headline.lower_is_better
    if headline.metric == "accuracy":
        return f"{number} {'more' if more else 'fewer'} of 100 {noun} are classified correctly"
    unit = " points" if headline.in_percent else ""
    return f"{headline.name_first} is {number}{unit} {'higher' if more else 'lower'}"
