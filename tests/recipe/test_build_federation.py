"""From a recipe to a federation: who gets which samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from mutua import Federation, InputError, Recipe
from mutua.data.partitions import Shards
from mutua.recipe import build_federation


def numbered(path: Path, n: int = 60, **more: Any) -> Path:
    """An array file whose every sample can be told from every other: a feature holds its number."""
    np.savez(path, x=np.stack([np.arange(n), np.zeros(n)], 1).astype(np.float32), y=np.arange(n) % 3, **more)
    return path


def held(federation: Federation) -> dict[str, dict[str, set[int]]]:
    """By client and split, the numbers of its samples."""
    splits = ("train", "val", "test")
    return {c.id: {s: {int(v) for v in getattr(c, s).x[:, 0]} for s in splits} for c in federation.clients}


def test_a_relative_path_counts_from_where_you_are(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    numbered(tmp_path / "here" / "mine.npz")
    changed = {**tiny, "data": {"name": "arrays", "path": "mine.npz"}}
    (tmp_path / "elsewhere" / "recipe.yaml").write_text(yaml.safe_dump(changed))
    recipe = Recipe.load(tmp_path / "elsewhere" / "recipe.yaml")
    monkeypatch.chdir(tmp_path / "here")
    assert len(recipe.federation().clients) == 2
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"^data: mine\.npz: not found"):
        recipe.federation()


# Clients with data of their own


def several(tmp_path: Path, *entries: dict[str, Any], **changes: Any) -> Recipe:
    clients = [{"model": "mlp", **entry} for entry in entries]
    return Recipe.of({"clients": clients, "models": {"global": "mlp"}, "method": "fml", **changes})


def test_clients_that_name_the_same_data_share_it_out(tmp_path: Path) -> None:
    """No sample is in two hands, so nobody is tested on what another has trained the global with."""
    data = {"name": "arrays", "path": str(numbered(tmp_path / "n.npz"))}
    found = held(several(tmp_path, *({"id": i, "data": data} for i in "abc")).federation())
    everything = [number for parts in found.values() for numbers in parts.values() for number in numbers]
    assert len(everything) == len(set(everything)) == 60
    assert {name: len(parts["train"]) for name, parts in found.items()} == {"a": 14, "b": 14, "c": 14}


def test_who_gets_what_does_not_depend_on_the_order_of_clients(tmp_path: Path) -> None:
    data = {"name": "arrays", "path": str(numbered(tmp_path / "n.npz"))}
    other = {"name": "arrays", "path": str(numbered(tmp_path / "m.npz", 40))}
    entries = [{"id": "b", "data": data}, {"id": "c", "data": other}, {"id": "a", "data": data}]
    forwards, backwards = several(tmp_path, *entries), several(tmp_path, *reversed(entries))
    assert held(forwards.federation()) == held(backwards.federation())
    assert [c.id for c in forwards.federation().clients] == ["b", "c", "a"]
    assert held(forwards.with_(seed=1).federation()) != held(forwards.federation())


def test_the_same_data_drawn_differently_is_noted(tmp_path: Path) -> None:
    path = str(numbered(tmp_path / "n.npz"))
    first = {"id": "a", "data": {"name": "arrays", "path": path}}
    second = {"id": "b", "data": {"name": "arrays", "path": path, "samples_per_client": 20}}
    notes = several(tmp_path, first, second).federation().notes
    assert any(note.startswith("b: the same data as others") for note in notes)
    assert not any("the same data" in note for note in several(tmp_path, first).federation().notes)


def test_a_source_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = build_federation.load
    monkeypatch.setattr(build_federation, "load", lambda name, **given: reads.append(name) or real(name, **given))
    path = str(numbered(tmp_path / "n.npz"))
    entries = [
        {"id": i, "data": {"name": "arrays", "path": path, "samples_per_client": n}}
        for i, n in (("a", 20), ("b", 30))
    ]
    several(tmp_path, *entries).federation()
    assert reads == ["arrays"]


def test_clients_with_different_classes_need_a_partial_global_or_are_joined_by_name(tmp_path: Path) -> None:
    first = numbered(tmp_path / "n.npz", classes=np.array(["ant", "bee", "cat"]))
    second = numbered(tmp_path / "m.npz", classes=np.array(["cat", "dog", "elk"]))
    entries = [{"id": i, "data": {"name": "arrays", "path": str(p)}} for i, p in (("a", first), ("b", second))]
    whole = several(tmp_path, *entries).federation()
    assert [c.task.classes for c in whole.clients] == [("ant", "bee", "cat", "dog", "elk")] * 2
    partial = several(tmp_path, *entries, models={"global": {"name": "mlp", "share": "body"}}).federation()
    assert [c.task.classes for c in partial.clients] == [("ant", "bee", "cat"), ("cat", "dog", "elk")]
    cats = whole["b"].train
    assert torch.equal(cats.y == 2, partial["b"].train.y == 0) and bool((cats.y == 2).any())


# Seeds


@pytest.mark.parametrize("more", [{}, {"public": {"share": 0.2}}, {"opt_out": {"samples": 0.5}}])
@pytest.mark.parametrize("kind", ["iid", "dirichlet", "majority"])
def test_the_deal_has_a_seed_of_its_own(more: dict[str, Any], kind: str, tmp_path: Path) -> None:
    options = {"dirichlet": {"alpha": 1.0, "min_size": 2}, "majority": {"p": 0.6, "majority_classes": 1}}
    tree: dict[str, Any] = {
        "data": {"name": "arrays", "path": str(numbered(tmp_path / "a.npz"))},
        "models": {"global": "mlp"},
        "method": "fedavg",
        **more,
    }

    def dealt(seed: int, own: int | None = None) -> Any:
        partition = {"kind": kind, "clients": 3, "seed": own, **options.get(kind, {})}
        recipe = Recipe.of({**tree, "seed": seed, "partition": partition})
        assert Recipe.of(yaml.safe_load(recipe.dump())) == recipe
        federation = recipe.federation()
        public = federation.public and [part.x[:, 0].tolist() for part in federation.public.parts.values()]
        opt_in = [None if c.opt_in is None else c.opt_in.tolist() for c in federation.clients]
        return held(federation), public, opt_in

    assert dealt(1, own=7) == dealt(2, own=7) == dealt(7)
    assert dealt(1) != dealt(2) and dealt(1, own=0) == dealt(0)


def test_a_partitions_seed_counts_in_python_too() -> None:
    x, y = np.arange(120, dtype=np.float32).reshape(60, 2), np.arange(60) % 3

    def first(seed: int, own: int | None) -> list[float]:
        partition = Shards(clients=3, shards_per_client=2, seed=own)
        dealt = Federation.from_arrays(x, y, partition=partition, models="mlp", seed=seed)
        return dealt.clients[0].train.x[:, 0].tolist()

    assert first(1, 5) == first(2, 5) == first(5, None) != first(1, None)
    with pytest.raises(InputError, match=r"partition\.seed"):
        Recipe.of({"data": "mnist5k", "partition": {"kind": "domains", "seed": -1}, "method": "fedavg"})
