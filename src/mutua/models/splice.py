"""Body, head and named parts of any model: what a partial global shares."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from mutua.errors import InputError, suggest

Share = Literal["all", "body", "head"] | list[str]


def head_of(module: nn.Module) -> tuple[str, nn.Module]:
    """Name and module of the head: the attribute `head`, else the last nn.Linear."""
    head = getattr(module, "head", None)
    if isinstance(head, nn.Module):
        return "head", head
    linear = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise InputError(
            f"models: model {type(module).__name__} has no head; name its last layer 'head' or share 'all'"
        )
    return linear[-1]


def features(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """z, what the head gets of each sample as one row, and the model's scores, from one forward."""
    name, head = head_of(module)
    seen: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        scores = module(x)
    finally:
        hook.remove()
    if not seen:
        raise InputError(
            f"models: the forward of {type(module).__name__} does not call '{name}', so it has no features"
        )
    return seen[-1].flatten(1), scores


class Pooled(nn.Module):
    """A model whose features are pooled to a common width, before a new linear head."""

    def __init__(self, model: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        name, head = head_of(model)
        there = getattr(head, "in_features", width)
        if there < width:
            raise InputError(
                f"models.features: {width}, but its head takes only {there} numbers; give at most {there}"
            )
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, nn.Identity())
        self.body, self.head = model, nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        scores: Tensor = self.head(F.adaptive_avg_pool1d(self.body(x).flatten(1), self.head.in_features))
        return scores


def shared_names(module: nn.Module, share: Share, at: str = "models.share") -> list[str]:
    """The state-dict names (parameters and buffers, in order) of this part; `at` is where it was asked for."""
    names = list(module.state_dict())
    for entry in () if isinstance(share, str) else share:
        if not _under(entry, names):
            parts = list(dict.fromkeys(name.partition(".")[0] for name in names))
            raise InputError(f"{at}: '{entry}' is no part of the model; {suggest(entry, parts)}")
    chosen = _lying_in(module, share, names, at)
    if not chosen:
        what = share.replace("all", "model") if isinstance(share, str) else "list"
        raise InputError(f"{at}: a {what} without anything in it; share 'all' or parts that have weights")
    _refuse_torn(module, chosen, at)
    return [name for name in names if name in chosen]


def layers_in(module: nn.Module, part: Share) -> list[nn.Module]:
    """The layers that lie in this part of a model, those without weights too; the body has the model itself."""
    layers = dict(module.named_modules())
    chosen = _lying_in(module, part, list(layers), "only")
    return [layer for name, layer in layers.items() if name in chosen]


def _lying_in(module: nn.Module, part: Share, names: list[str], at: str) -> set[str]:
    """Those of the names that are in this part."""
    if part == "all":
        return set(names)
    if part in ("body", "head"):
        of_head = _under(head_of(module)[0], names)
        return of_head if part == "head" else set(names) - of_head
    if isinstance(part, str):
        raise InputError(f"{at}: '{part}'; give all, body, head or a list of names")
    return {name for entry in part for name in _under(entry, names)}


def _refuse_torn(module: nn.Module, chosen: set[str], at: str) -> None:
    """One weight under two names (tied) cannot be both in a part and not: its private value would leave."""
    first: dict[int, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        other = first.setdefault(id(tensor), name)
        if (name in chosen) != (other in chosen):
            raise InputError(f"{at}: '{other}' and '{name}' are one weight; share both or neither")


def _under(part: str, names: list[str]) -> set[str]:
    """The names that are this part or lie in it; everything lies in the part named ''."""
    return {name for name in names if not part or name == part or name.startswith(f"{part}.")}
