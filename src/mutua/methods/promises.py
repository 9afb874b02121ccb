"""What a method's class promises, whether that still counts in a class derived from it, and misspelt verbs."""

from __future__ import annotations

HARMLESS = frozenset(
    {
        # Only the server runs these, and it sees nothing but messages.
        *("open", "global_for", "forked_from", "offered", "brief", "check", "outliers", "merge", "merge_weights"),
        *("shares", "averages"),
        # These serve, describe or set numbers; nothing leaves after them.
        *("predictor", "evaluated", "made_of", "personalise", "reply_bytes", "numbers", "stopping"),
        *("stops_early", "needs_labels", "needs_classes", "works_alone", "made_at_end", "replies_from", "breaks"),
    }
)
"""What can be overridden without changing how a client's samples reach what leaves it."""
SERVING = frozenset(("global_for", "forked_from", "brief", "check", "outliers", "merge", "merge_weights"))
"""What decides how the server uses what was sent."""


def promised(method: type, promise: str) -> bool:
    """Whether a class promises this, of all the code it has, such as `honours_opt_out`."""
    return bool(getattr(method, promise)) and not overridden(method, promise)


def doubt(method: type, promise: str) -> str:
    """Why a promise that a class has inherited does not count, and what to declare; empty if that is not so."""
    found = overridden(method, promise) if getattr(method, promise) else None
    if found is None:
        return ""
    kind, names = found
    what = f"{kind.__name__} overrides {' and '.join(names)}, of which nobody has declared {promise}"
    return f"{what}; if it holds, declare {promise}: ClassVar[bool] = True in {method.__name__}"


def overridden(method: type, promise: str) -> tuple[type, list[str]] | None:
    """The most derived class that overrides what could break the promise after it was made, and what it overrides.

    A promise is made by the class that declares it, of its own code and of what it inherits.
    """
    line = method.__mro__
    for place, kind in enumerate(line):
        if promise in vars(kind):
            return None
        found = [
            name for name in vars(kind) if _can_break(name, promise) and _is_inherited(name, line[place + 1 :])
        ]
        # Hub.averages itself looks at what the methods of this package do.
        if found and not (promise == "averages" and kind.__module__.startswith("mutua.methods.")):
            return kind, found
    return None


def _can_break(name: str, promise: str) -> bool:
    return name in SERVING if promise == "averages" else name not in HARMLESS


def _is_inherited(name: str, bases: tuple[type, ...]) -> bool:
    """Whether a class overrides it, as a function or property that is not Python's or pydantic's."""
    inner = name.startswith(("__", "_abc", "model_"))
    return not inner and any(hasattr(vars(base).get(name), "__get__") for base in bases)


def misspelt(method: type, verbs: frozenset[str]) -> tuple[str, str] | None:
    """A function of the class that is one letter away from a verb, so that nothing calls it, and that verb."""
    known = {name for base in method.__mro__[1:] for name in vars(base)}
    # Names first: to ask pydantic's own attributes would build the class, which waits until it is used.
    own = (name for name in vars(method) if name[0] != "_" and name not in known)
    names = [name for name in own if hasattr(vars(method)[name], "__get__")]
    return next(((name, verb) for name in names for verb in sorted(verbs) if _one_edit(name, verb)), None)


def _one_edit(one: str, other: str) -> bool:
    """Whether one letter is other, missing or too much, or two neighbours have changed places."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    swapped = one[at : at + 2] == other[at : at + 2][::-1] and one[at + 2 :] == other[at + 2 :]
    rest = one[at + 1 :], other[at + 1 :]
    return swapped or rest[0] == rest[1] or rest[0] == other[at:] or one[at:] == rest[1]
