"""Body, head and named parts of any model: what a partial global shares."""

from __future__ import annotations

from typing import Literal

from torch import nn

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


def shared_names(module: nn.Module, share: Share) -> list[str]:
    """The state-dict names (parameters and buffers, in order) that cross when `share` is shared."""
    names = list(module.state_dict())
    if share == "all":
        chosen = set(names)
    elif share in ("body", "head"):
        head, _ = head_of(module)
        of_head = _under(head, names)
        chosen = of_head if share == "head" else set(names) - of_head
    elif isinstance(share, str):
        raise InputError(f"models.share: '{share}'; give all, body, head or a list of names")
    else:
        chosen = set()
        for entry in share:
            matched = _under(entry, names)
            if not matched:
                parts = list(dict.fromkeys(name.partition(".")[0] for name in names))
                raise InputError(f"models.share: '{entry}' is no part of the model; {suggest(entry, parts)}")
            chosen |= matched
    if not chosen:
        what = share.replace("all", "model") if isinstance(share, str) else "list"
        raise InputError(f"models.share: a {what} without anything in it; share 'all' or parts that have weights")
    _refuse_torn(module, chosen)
    return [name for name in names if name in chosen]


def _refuse_torn(module: nn.Module, chosen: set[str]) -> None:
    """One weight under two names (tied) cannot be both shared and private: its private value would leave."""
    first: dict[int, str] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        other = first.setdefault(id(tensor), name)
        if (name in chosen) != (other in chosen):
            raise InputError(f"models.share: '{other}' and '{name}' are one weight; share both or neither")


def _under(part: str, names: list[str]) -> set[str]:
    """The names that are this part or lie in it; everything lies in the part named ''."""
    return {name for name in names if not part or name == part or name.startswith(f"{part}.")}
