"""Which methods let clients have lists of classes of their own: what they declare, and what happens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import mutua
from method_needs import AGREED
from mutua import Federation, InputError, methods
from mutua.data.public import Public

CLASSES = [("ape", "bee"), ("bee", "cat", "dog")]
SHORT: dict[str, dict[str, Any]] = {"finetuned": {"tune_epochs": 1}, "mixture": {"mixture_epochs": 1}}
PLAN: dict[str, Any] = {"rounds": 1, "batch_size": 8, "device": "cpu", "workers": 1, "progress": False}


@pytest.mark.parametrize("name", methods.names())
def test_lists_of_classes_may_differ_where_the_method_says_so(
    name: str, federate: Callable[..., Federation], nets: SimpleNamespace
) -> None:
    method = methods.of({"name": name, **AGREED.get(name, {}), **SHORT.get(name, {})})
    shared = {"name": nets.plain, "share": "body"}
    federation = federate([8, 9], classes=CLASSES, models=nets.plain, global_model=shared)
    if not method.own_classes:
        made = replace(federation, public=_public(federation)) if method.needs_public else federation
        with pytest.raises(InputError, match=f"different classes|same inputs and classes|{name}"):
            mutua.run(method, made, **PLAN)
        return
    result = mutua.run(method, federation, **PLAN)
    if not method.pools_data:
        assert [client.client.task.classes for client in result.clients] == CLASSES
    assert all(client.accuracy() is not None for client in result.clients)


def _public(federation: Federation) -> Public:
    return Public({client.id: client.test for client in federation.clients})
