"""What each client would have without the federation, as far as a run or its study knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mutua.errors import InputError
from mutua.learning.headline import Headline
from mutua.methods import base
from mutua.methods.promises import promised
from mutua.support import safe_reading
from mutua.watch.catalogue import Found
from mutua.watch.inside import json_inside, read_inside

_BENEFIT = 2**18
_RECORD = 2**24
_SAME = ("data", "partition", "clients", "rounds", "epochs", "steps")
"""What two recipes must agree in, so that the same clients train equally long on the same data."""


def recipe_in(root: Path, parts: Sequence[str]) -> dict[str, Any]:
    """The recipe in a run's folder, as it is written; nothing that it names is imported."""
    try:
        text = read_inside(root, (*parts, "recipe.yaml"), safe_reading.MAX_YAML_CHARACTERS).decode()
        found = safe_reading.from_yaml(text)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keeps_alone(recipe: Mapping[str, Any]) -> bool:
    """Whether the personal model of this method is what its client would have alone."""
    section = recipe.get("method")
    if not isinstance(section, Mapping) or section.get("name") not in base.method_names():
        return False
    with suppress(InputError):
        method = base.method_of(section)
        return promised(type(method), "keeps_alone") and not method.breaks("keeps_alone")
    return False


def alone_by_client(
    root: Path, run: Found, clients: Sequence[str], headline: Headline, others: Sequence[Found]
) -> dict[str, float]:
    """By client, from what a finished run has found out, or from the run of its study in which each is alone."""
    found = {}
    for client in clients:
        told = json_inside(root, (*run.parts, "clients", client, "benefit.json"), _BENEFIT)
        with suppress(TypeError, KeyError, ValueError):
            if told["metric"] == headline.metric:
                found[client] = float(told["models"]["alone"]["value"])
        if not told and not found:
            break  # a method that does not know it knows it of nobody
    return found or _from_study(root, run, headline, others)


def _from_study(root: Path, run: Found, headline: Headline, others: Sequence[Found]) -> dict[str, float]:
    mine = recipe_in(root, run.parts)
    if not mine or _method(mine) in ("independent", "centralised"):
        return {}
    for other in others:
        theirs = recipe_in(root, other.parts)
        if _method(theirs) != "independent" or theirs.get("seed") != mine.get("seed"):
            continue
        if any(theirs.get(key) != mine.get(key) for key in _SAME):
            continue
        summary = json_inside(root, (*other.parts, "run.json"), _RECORD).get("summary")
        with suppress(TypeError, KeyError, ValueError):
            told = {one["id"]: one[headline.metric]["predictor"] for one in summary["clients"]}  # type: ignore[index]
            return {client: float(value) for client, value in told.items() if value is not None}
    return {}


def _method(recipe: Mapping[str, Any]) -> object:
    section = recipe.get("method")
    return section.get("name") if isinstance(section, Mapping) else section
