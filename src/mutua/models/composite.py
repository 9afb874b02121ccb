"""Predictors that are made of several models: named parts, and a rule that combines what they say.

A composite is saved as one file of weights and a description, its `spec`, of which it is built again: by mutua, or
in plain torch by the formula that every rule has. A part may be a composite too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mutua.errors import InputError, suggest
from mutua.models.splice import features
from mutua.support.tensor_files import Tensors

COMPOSITE = "composite"
MOST_PARTS, MOST_DEPTH = 16, 4
"""How many parts a description may have, and how deep composites lie in composites."""

Parts = Mapping[str, nn.Module]


class Rule(nn.Module, ABC):
    """How a composite's parts are combined. Its constants are buffers; what it is made with is its `options`."""

    name: ClassVar[str]
    formula: ClassVar[str]
    """What it computes, for who builds it again without mutua."""

    def __init__(self, options: Mapping[str, Any] | None = None, constants: Tensors | None = None) -> None:
        super().__init__()
        self.options = dict(options or {})
        for name, constant in (constants or {}).items():
            self.register_buffer(name, constant.clone())

    @abstractmethod
    def forward(self, parts: Parts, x: Tensor) -> Tensor:
        """Scores: log-probabilities serve as such too."""

    @classmethod
    def of(cls, options: Mapping[str, Any], constants: Tensors) -> Rule:
        """The rule again, of what a description and a file of weights hold."""
        made = cls.__new__(cls)
        Rule.__init__(made, options, constants)
        return made

    @property
    def spec(self) -> dict[str, Any]:
        """What a card says of it."""
        return {"name": self.name, **self.options, "formula": self.formula}


R = TypeVar("R", bound=type[Rule])
_RULES: dict[str, type[Rule]] = {}


def register_rule(rule: R) -> R:
    """Make a rule known by its name, so that what it combines can be loaded again."""
    _RULES[rule.name] = rule
    return rule


@register_rule
class Gate(Rule):
    """log(h·p_personal + (1−h)·p_expert): a gate h(x) weighs two experts."""

    name: ClassVar[str] = "gate"
    formula: ClassVar[str] = (
        "h = sigmoid(gate(x)); probabilities: log(h * p_personal + (1 - h) * p_expert); log-probabilities: "
        "log_softmax(h * log p_personal + (1 - h) * log p_expert)"
    )

    def __init__(self, mix: Literal["probabilities", "log-probabilities"] = "probabilities") -> None:
        super().__init__({"mix": mix})

    def forward(self, parts: Parts, x: Tensor) -> Tensor:
        """Log-probabilities."""
        score = parts["gate"](x)
        local, shared = F.log_softmax(parts["personal"](x), 1), F.log_softmax(parts["expert"](x), 1)
        if self.options["mix"] == "log-probabilities":
            h = torch.sigmoid(score)
            return F.log_softmax(h * local + (1 - h) * shared, 1)
        return torch.logaddexp(F.logsigmoid(score) + local, F.logsigmoid(-score) + shared)


@register_rule
class Weighted(Rule):
    """log((1−ε)·Σ w_m·p_m + ε/C): fixed weights, and a little of every class."""

    name: ClassVar[str] = "weighted"
    formula: ClassVar[str] = (
        "log((1 - smoothing) * sum_m weights[m] * p_m + smoothing / classes), m by order of parts"
    )

    def __init__(self, weights: Tensor, smoothing: float = 0.0, prior: Sequence[float] | None = None) -> None:
        """`prior` are the weights before validation samples were seen, if they decided: it is said, not used."""
        if weights.dim() != 1 or bool((weights < 0).any()) or not 0.999 < float(weights.sum()) < 1.001:
            raise InputError(
                f"Weighted: weights {weights.tolist()}; give one for each part, none below 0, of sum 1"
            )
        known = {} if prior is None else {"prior": list(prior)}
        super().__init__({"smoothing": smoothing, **known}, {"weights": weights})

    weights: Tensor

    def forward(self, parts: Parts, x: Tensor) -> Tensor:
        """Log-probabilities."""
        said = torch.stack([F.log_softmax(part(x), 1) for part in parts.values()])
        if len(said) != len(self.weights):
            raise InputError(f"Weighted: {len(self.weights)} weights for {len(said)} parts; give one for each")
        mixed = torch.logsumexp(said + self.weights.to(said.dtype).log()[:, None, None], 0)
        smoothing = torch.tensor(float(self.options["smoothing"]), dtype=said.dtype, device=said.device)
        return torch.logaddexp(torch.log1p(-smoothing) + mixed, (smoothing / said.shape[2]).log())


@register_rule
class Shifted(Rule):
    """A model's scores plus a constant for each class, such as the log of a prior: corrected logits."""

    name: ClassVar[str] = "shifted"
    formula: ClassVar[str] = "model(x) + shift"

    def __init__(self, shift: Tensor) -> None:
        super().__init__(constants={"shift": shift})

    shift: Tensor

    def forward(self, parts: Parts, x: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = parts["model"](x) + self.shift
        return scores


@register_rule
class NearestPrototype(Rule):
    """−‖z − P_c‖² of a model's features z; a class that is not `among` those to choose from is ruled out."""

    name: ClassVar[str] = "nearest-prototype"
    formula: ClassVar[str] = "z = input of model's head; -||z - prototypes[c]||^2, -inf where not among[c]"

    def __init__(self, prototypes: Tensor, among: Tensor) -> None:
        super().__init__(constants={"prototypes": prototypes, "among": among})

    prototypes: Tensor
    among: Tensor

    def forward(self, parts: Parts, x: Tensor) -> Tensor:
        """Scores."""
        z, _ = features(parts["model"], x)
        return (-torch.cdist(z, self.prototypes).square()).masked_fill(~self.among, -torch.inf)


@register_rule
class TwoHeads(Rule):
    """A model's scores plus those of a second, linear head on the same features."""

    name: ClassVar[str] = "two-heads"
    formula: ClassVar[str] = "z = input of model's head; model(x) + z @ weight.T + bias"

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__(constants={"weight": weight, "bias": bias})

    weight: Tensor
    bias: Tensor

    def forward(self, parts: Parts, x: Tensor) -> Tensor:
        """Scores."""
        z, scores = features(parts["model"], x)
        return scores + F.linear(z, self.weight, self.bias)


@register_rule
class Stacked(Rule):
    """A model of the server's on the features that a client's own model gives."""

    name: ClassVar[str] = "stacked"
    formula: ClassVar[str] = "z = input of edge's head; server(z)"

    def forward(self, parts: Parts, x: Tensor) -> Tensor:
        """Scores."""
        z, _ = features(parts["edge"], x)
        scores: Tensor = parts["server"](z)
        return scores


class Composite(nn.Module):
    """Parts by name, each with the description that it is built by, and the rule that combines them."""

    def __init__(
        self, rule: Rule, parts: Parts, specs: Mapping[str, Any] | None = None, frozen: Collection[str] = ()
    ) -> None:
        super().__init__()
        if len(set(parts.values())) < len(parts):
            raise InputError("Composite: two of its parts are one module; client.keep one under a name of its own")
        for name, part in parts.items():
            if name == "rule" or hasattr(self, name):
                raise InputError(f"Composite: no part can be called '{name}'; give another name")
            self.add_module(name, part)
        self.rule, self.names, self.specs, self.frozen = rule, tuple(parts), dict(specs or {}), frozenset(frozen)

    @property
    def spec(self) -> dict[str, Any]:
        """What a card says of it: of this and its weights it can be built again."""
        return {
            "name": COMPOSITE,
            "rule": self.rule.spec,
            "parts": {name: self.specs[name] for name in self.names},
        }

    def train(self, mode: bool = True) -> Composite:
        """Frozen parts stay in evaluation mode: their running statistics would change too."""
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).train(False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Scores, by the rule."""
        parts: dict[str, Any] = {name: self.get_submodule(name) for name in self.names}
        scores: Tensor = self.rule(parts | {name: _without_gradient(parts[name]) for name in self.frozen}, x)
        return scores


def _without_gradient(part: nn.Module) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            scores: Tensor = part(x)
            return scores

    return forward


def build_composite(
    spec: Mapping[str, Any], weights: Tensors, build: Callable[[Mapping[str, Any]], nn.Module], depth: int = 1
) -> Composite:
    """The composite of this description, with the rule's constants and without weights; `build` makes a part."""
    rule, parts = dict(spec["rule"]), dict(spec["parts"])
    if depth > MOST_DEPTH or not 0 < len(parts) <= MOST_PARTS:
        raise InputError(f"a composite of {len(parts)} parts, {depth} deep; at most {MOST_PARTS} and {MOST_DEPTH}")
    name = str(rule.pop("name", ""))
    if name not in _RULES:
        raise InputError(f"rule '{name}' is not known; {suggest(name, sorted(_RULES))}; import what registers it")
    rule.pop("formula", None)
    made: dict[str, nn.Module] = {}
    for part, its in parts.items():
        mine = {
            key.removeprefix(f"{part}."): array for key, array in weights.items() if key.startswith(f"{part}.")
        }
        inner = its.get("name") == COMPOSITE
        made[part] = build_composite(its, mine, build, depth + 1) if inner else build(its)
    constants = {key.removeprefix("rule."): array for key, array in weights.items() if key.startswith("rule.")}
    return Composite(_RULES[name].of(rule, constants), made, parts)


def of_mixture(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a mixture of experts as cards had it before there were composites."""
    gate = {**spec["gate"], "outputs": 1}
    parts = {"expert": spec["expert"], "personal": spec["personal"], "gate": gate}
    return {"name": COMPOSITE, "rule": {"name": "gate", "mix": str(spec["mix"])}, "parts": parts}
