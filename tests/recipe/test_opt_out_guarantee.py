"""The guarantee over every way to give data and to opt out: nothing shared depends on what is opted out.

Every way makes a federation of data that is opted in, always the same, and of something else that is opted out:
a `secret` seeds its values, and, where the way promises it, its labels, their number and their places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mutua import Client, Federation, InputError, Recipe, Samples, Split, partitions
from mutua.methods import MixtureOfExperts
from mutua.rounds.events import Reached, RoundStarted

CLASSES = ("ape", "bee", "cat", "dog")
STRANGE = 3
"""The label of a class that no opted-in sample has: only where classes are declared may there be such samples."""
SIDE = 4
MODEL = {"name": "mlp", "width": 0.03}
Made = tuple[np.ndarray, np.ndarray, np.ndarray]


def kept(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of bytes that are opted in: three classes."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return (80 * y[:, None, None] + rng.integers(0, 60, (n, SIDE, SIDE))).astype(np.uint8), y


class Secret:
    """What is opted out: so many images, of any of the labels, anywhere among the others."""

    def __init__(self, seed: int, declared: bool, strange: bool = False) -> None:
        self.rng = np.random.default_rng(1000 + seed)
        self.declared, self.labels, self.strange = declared, (4 if declared else 3), strange

    def drawn(self, least: int = 0) -> tuple[np.ndarray, np.ndarray]:
        n = int(self.rng.integers(6 if self.strange else least, 12))
        y = self.rng.integers(0, self.labels, n)
        if self.strange:
            y[: n // 2], self.strange = STRANGE, False
        return self.rng.integers(0, 256, (n, SIDE, SIDE)).astype(np.uint8), y

    def among(self, n: int, seed: int) -> Made:
        """Opted-in images in their order with the others strewn among them; which are opted out."""
        (x, y), (more_x, more_y) = kept(n, seed), self.drawn()
        out = np.zeros(n + len(more_y), dtype=bool)
        out[self.rng.choice(len(out), len(more_y), replace=False)] = True
        all_x, all_y = np.empty((len(out), SIDE, SIDE), np.uint8), np.empty(len(out), np.int64)
        all_x[~out], all_y[~out], all_x[out], all_y[out] = x, y, more_x, more_y
        return all_x, all_y, out

    @property
    def names(self) -> dict[str, Any]:
        return {"classes": list(CLASSES)} if self.declared else {}


def recipe(**sections: Any) -> Federation:
    plan = {"models": {"global": MODEL}, "method": "mixture", "seed": 1}
    return Recipe.of({**plan, **sections}).federation()


def arrays(path: Path, made: Made, **more: Any) -> dict[str, Any]:
    x, y, out = made
    np.savez(path, x=x, y=y, out=out, **more)
    return {"name": "arrays", "path": str(path)}


def folder(path: Path, made: Made, colour: bool = False, domains: int = 0) -> dict[str, Any]:
    """The images as PNG files and the list of those that are opted out, which may be in colour."""
    listed, x, y, out = [], *made
    seen = {True: 0, False: 0}
    for image, label, hidden in zip(x, y, out, strict=True):
        number = seen[bool(hidden)]
        seen[bool(hidden)] += 1
        under = f"d{number % domains}/" if domains else ""
        name = f"{under}{CLASSES[label]}/{'z' if hidden else 'a'}{number:03d}.png"
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).convert("RGB" if hidden and colour else "L").save(path / name)
        listed += [name] if hidden else []
    (path / "out.txt").write_text("\n".join(listed))
    return {"name": "folder", "path": str(path)}


# Ways that promise everything: values, labels, number and places


def partition_arrays(at: Path, secret: Secret) -> Federation:
    data = arrays(at / "a.npz", secret.among(60, 1)) | secret.names
    return recipe(
        data=data, partition={"kind": "shards", "clients": 3, "shards_per_client": 2}, opt_out={"mask": "out"}
    )


def partition_arrays_with_a_test_part(at: Path, secret: Secret) -> Federation:
    x_test, y_test, out_test = secret.among(20, 2)
    more = {"x_test": x_test, "y_test": y_test, "out_test": out_test}
    more |= {"classes": np.array(CLASSES)} if secret.declared else {}
    data = arrays(at / "a.npz", secret.among(60, 1), **more) | {"samples_per_client": 15, "test_samples": 18}
    return recipe(data=data, partition={"kind": "iid", "clients": 3}, opt_out={"mask": "out"})


def partition_folder(at: Path, secret: Secret) -> Federation:
    data = folder(at / "f", secret.among(30, 1), colour=True) | secret.names
    return recipe(data=data, partition={"kind": "iid", "clients": 2}, opt_out={"mask": "out"})


def partition_domains(at: Path, secret: Secret) -> Federation:
    data = folder(at / "f", secret.among(36, 1), domains=2) | secret.names
    return recipe(data=data, partition={"kind": "domains"}, opt_out={"mask": "out.txt"})


def clients_mask(at: Path, secret: Secret) -> Federation:
    """Arrays that name their classes and a folder with pictures in colour, which has one if they are declared."""
    names = np.array(CLASSES if secret.declared else CLASSES[:3])
    folders = folder(at / "b", secret.among(24, 2), colour=True) | secret.names
    data = {"b": folders, "c": arrays(at / "c.npz", Secret(7, False).among(24, 3), classes=names)}
    return recipe(
        clients=[{"id": i, "data": one, "model": MODEL} for i, one in data.items()], opt_out={"mask": "out"}
    )


def clients_mask_by_number(at: Path, secret: Secret) -> Federation:
    x, y = secret.drawn(least=4)
    data = {
        "a": arrays(at / "a.npz", (x, y, np.ones(len(y), dtype=bool))),
        "b": arrays(at / "b.npz", secret.among(24, 1)),
        "c": arrays(at / "c.npz", secret.among(21, 2)),
    }
    return recipe(
        clients=[{"id": i, "data": one | secret.names, "model": MODEL} for i, one in data.items()],
        opt_out={"mask": "out"},
    )


def clients_fraction(at: Path, secret: Secret, kind: Callable[..., dict[str, Any]] = arrays) -> Federation:
    """Who opts out is drawn by ids: c and a, by this seed; all that they have is another."""
    end = ".npz" if kind is arrays else ""
    made = {}
    for k, name in enumerate("abcd"):
        x, y = secret.drawn(least=6) if name in "ac" else kept(18, k)
        made[name] = kind(at / f"{name}{end}", (x, y, np.zeros(len(y), dtype=bool))) | secret.names
    federation = recipe(
        clients=[{"id": i, "data": one, "model": MODEL} for i, one in made.items()], opt_out={"fraction": 0.5}
    )
    assert {c.id for c in federation.clients if not c.takes_part} == {"a", "c"}
    return federation


def clients_fraction_of_folders(at: Path, secret: Secret) -> Federation:
    return clients_fraction(at, secret, folder)


def python_arrays(at: Path, secret: Secret) -> Federation:
    x, y, out = secret.among(60, 1)
    how = {"partition": partitions.Dirichlet(clients=3, alpha=2.0, min_size=2), "global_model": MODEL}
    classes = CLASSES if secret.declared else None
    return Federation.from_arrays(x, y, opted_out=out, classes=classes, test=kept(12, 5), **how)


def python_clients(at: Path, secret: Secret, share: str = "all") -> Federation:
    """Made by hand: `opt_in` for one, marks in the data of the other, and one that is wholly out."""
    classes = CLASSES if secret.declared else None

    def samples(made: tuple[np.ndarray, ...]) -> Samples:
        x, y, *_ = made
        return Samples.of(x, y, classes=classes)

    def member(name: str, parts: list[tuple[np.ndarray, ...]], **more: Any) -> Client:
        held = [samples(part) for part in parts]
        names = max((part.classes for part in held), key=len)
        held = [replace(part, classes=names) for part in held]
        marked = [
            replace(s, opted_out=torch.from_numpy(p[2])) if len(p) > 2 else s
            for s, p in zip(held, parts, strict=True)
        ]
        return Client(name, *marked, MODEL, **more)  # type: ignore[arg-type]

    whole = secret.drawn(least=2)
    x, y, out = secret.among(12, 1)
    return Federation(
        (
            member("a", [whole] * 3, opt_in=torch.zeros(len(whole[1]), dtype=torch.bool)),
            member("b", [(x, y), kept(6, 11), kept(6, 12)], opt_in=torch.from_numpy(~out)),
            member("c", [secret.among(9, 2), secret.among(6, 3), secret.among(6, 4)]),
        ),
        MODEL | {"share": share},  # type: ignore[arg-type]
    )


def python_clients_with_a_partial_global(at: Path, secret: Secret) -> Federation:
    return python_clients(at, secret, "body")


# Ways that deal first and draw then who or what opts out: they promise it of values


def dealt(at: Path, secret: Secret, opt_out: dict[str, Any], **how: Any) -> Federation:
    """What is drawn depends on no value: it is found by its first pixel, and then changed."""
    (x, y), rng = kept(66, 1), secret.rng
    x[:, 0, 0] = np.arange(66)

    def made() -> Federation:
        names = {"classes": np.array(CLASSES)} if secret.declared else {}
        data = arrays(at / "a.npz", (x, y, np.zeros(66, dtype=bool)), **names)
        if not how:
            return recipe(clients=[{"id": i, "data": data, "model": MODEL} for i in "abc"], opt_out=opt_out)
        return recipe(data=data, opt_out=opt_out, **how)

    for client in made().clients:
        hidden = [client.train] if not client.takes_part else [client.train.take((~client.opt_in).nonzero()[:, 0])]
        hidden += [] if client.takes_part else [client.val, client.test]
        for which in (part.x[:, 0, 0, 0].numpy() for part in hidden):
            x[which, 1:] = rng.integers(0, 256, (len(which), SIDE - 1, SIDE))
    return made()


def partition_fraction(at: Path, secret: Secret) -> Federation:
    return dealt(at, secret, {"fraction": 0.34}, partition={"kind": "iid", "clients": 3})


def partition_samples(at: Path, secret: Secret) -> Federation:
    return dealt(at, secret, {"samples": 0.4}, partition={"kind": "majority", "clients": 3, "p": 0.5})


def clients_that_share_samples(at: Path, secret: Secret) -> Federation:
    return dealt(at, secret, {"samples": 0.5})


ALL = [
    *(partition_arrays, partition_arrays_with_a_test_part, partition_folder, partition_domains),
    *(clients_mask, clients_mask_by_number, clients_fraction, clients_fraction_of_folders),
    *(python_arrays, python_clients, python_clients_with_a_partial_global),
]
VALUES = [partition_fraction, partition_samples, clients_that_share_samples]
Way = Callable[[Path, Secret], Federation]
Simulate = Callable[..., Any]


def everything_shared(run: Any) -> dict[str, Any]:
    """All messages as bytes, the ledger, the global, who was drawn, and every number that selects."""
    federation, history = run.federation, run.history
    reached = [event.run_state for event in run.events if isinstance(event, Reached)]
    evaluated = sorted({row.round for row in history})
    return {
        "up": {key: r.message and r.message.encode() for key, r in run.engine.replies.items()},
        "down": {key: brief.encode() for key, brief in run.engine.briefs.items()},
        "ledger": list(run.ledger),
        "global": {name: array.numpy().tobytes() for name, array in run.server.state["global"].items()},
        "drawn": [event.clients for event in run.events if isinstance(event, RoundStarted)],
        "classes": federation.classes if not federation.partial else None,
        "labels": {c.id: c.task.classes for c in federation.clients if c.takes_part},
        "judged": {at: history.validation("global", at) for at in evaluated},
        "best": history.best_rounds().get(("global", "global")),
        "checkpoints": [run_state.validation for run_state in reached],
        "common test": [row for row in history if row.client == "global"],
    }


def shared(simulate: Simulate, federation: Federation) -> dict[str, Any]:
    return everything_shared(simulate(MixtureOfExperts(mixture_epochs=1), federation, rounds=2, batch_size=8))


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
@pytest.mark.parametrize("way", ALL + VALUES, ids=lambda way: way.__name__)
def test_nothing_shared_depends_on_what_is_opted_out(
    way: Way, declared: bool, tmp_path: Path, simulate: Simulate
) -> None:
    found = []
    for seed in range(3):
        at = tmp_path / str(seed)
        at.mkdir()
        federation = way(at, Secret(seed, declared))
        found.append((shared(simulate, federation), sum(client.opted_out for client in federation.clients)))
    (first, number), *others = found
    assert number + sum(n for _, n in others) > 0
    assert first["up"] and any(value is not None for value in first["judged"].values())
    for other, _ in others:
        assert {key for key in first if first[key] != other[key]} == set()


@pytest.mark.parametrize("way", ALL, ids=lambda way: way.__name__)
def test_a_class_of_opted_out_samples_alone_is_declared_or_refused(way: Way, tmp_path: Path) -> None:
    """Before anything leaves; but a client that is wholly out may have what it likes beside a partial global."""
    if way is python_clients_with_a_partial_global:
        federation = way(tmp_path, Secret(0, False, strange=True))
        assert [len(client.task.classes) for client in federation.clients] == [4, 3, 3]
        return
    with pytest.raises(InputError, match=r"only opted-out samples have (3|dog), .*declare all classes"):
        way(tmp_path, Secret(0, False, strange=True))


def test_the_comparison_finds_what_leaks(tmp_path: Path, simulate: Simulate) -> None:
    """Opted-in samples change everything."""
    one, other = (
        Federation.from_arrays(
            *kept(30, seed), partition=partitions.IID(clients=2), global_model=MODEL, split=Split()
        )
        for seed in (1, 2)
    )
    differing = {key for key, value in shared(simulate, one).items() if value != shared(simulate, other)[key]}
    assert differing >= {"up", "down", "global"}
