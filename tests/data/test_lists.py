"""Folders of domains that are split by list files, as PACS publishes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mutua import InputError, Recipe, Samples, load, run
from mutua.data import image_folders
from mutua.methods import Aggregated

DOMAINS, CLASSES = ("art_painting", "sketch"), ("dog", "giraffe", "house")
EACH = 20  # images of a class in a domain; of every ten the last is for validation


def colour(domain: str, name: str, k: int) -> tuple[int, int, int]:
    return DOMAINS.index(domain), CLASSES.index(name), k


def make(folder: Path, at: Path | None) -> Path:
    """Images of one colour each, by which they are known again, and their lists in the folder `at`."""
    lists: dict[str, list[str]] = {}
    for domain in DOMAINS:
        for name in CLASSES:
            (folder / domain / name).mkdir(parents=True)
            for k in range(EACH):
                file = f"{domain}/{name}/pic_{k:03d}.png"
                Image.new("RGB", (4, 4), colour(domain, name, k)).save(folder / file)
                line = f"{file} {CLASSES.index(name) + 1}"
                lists.setdefault(f"{domain}_{'crossval' if k % 10 == 9 else 'train'}_kfold.txt", []).append(line)
                lists.setdefault(f"{domain}_test_kfold.txt", []).append(line)
    if at is not None:
        at.mkdir(exist_ok=True)
        for name, lines in lists.items():
            (at / name).write_text("\n".join(lines) + "\n\n")
    return folder


def recipe(path: Path, **changes: Any) -> Recipe:
    tree: dict[str, Any] = {
        "data": {"name": "folder", "path": str(path)},
        "partition": {"kind": "domains"},
        "models": {"clients": "mlp", "global": "mlp"},
        "public": {"share": 0.1},
        "method": "fedh2l",
    }
    return Recipe.of({**tree, **changes})


def known(samples: Samples) -> set[tuple[int, ...]]:
    """The images, by their colours."""
    return {tuple(pixel) for pixel in samples.x[:, :, 0, 0].tolist()}


@pytest.mark.parametrize("where", ["beside the domains", "above"])
def test_the_lists_say_what_is_train_val_and_test(tmp_path: Path, where: str) -> None:
    folder = tmp_path / "kfold"
    at = tmp_path if where == "above" else folder
    federation = recipe(make(folder, at)).federation()
    assert [client.domain for client in federation.clients] == list(DOMAINS)
    everything = set()
    for client in federation.clients:
        assert federation.public is not None
        public = federation.public.parts[client.id]
        images = {(name, k): colour(client.id, name, k) for name in CLASSES for k in range(EACH)}
        assert known(client.train) == {c for (_, k), c in images.items() if k % 10 != 9}
        assert known(client.val) == {c for (_, k), c in images.items() if k % 10 == 9}
        # A tenth of the test part is public, class by class, and the rest is test.
        assert public.counts().tolist() == [2, 2, 2]
        assert known(public) | known(client.test) == set(images.values())
        assert len(public) + len(client.test) == len(images)
        for part in (client.train, client.val, client.test, public):
            assert part.y.tolist() == part.x[:, 1, 0, 0].tolist() and len(known(part)) == len(part)
        everything |= known(client.test)
    assert federation.test is not None
    assert known(federation.test) == everything and len(federation.test) == 108
    note = "split by list files: 120 of 120 test images are training or validation images too"
    assert federation.notes == (note,)


def test_a_run_says_so(tmp_path: Path) -> None:
    made = recipe(make(tmp_path, tmp_path), method="aggregated")
    result = run(Aggregated(), made.federation(), rounds=1, batch_size=16, device="cpu")
    assert "120 of 120 test images are training" in result.federation.notes[0]


def test_pacs_by_name(tmp_path: Path) -> None:
    (tmp_path / "PACS").mkdir()
    make(tmp_path / "PACS" / "kfold", tmp_path / "PACS")
    source = load("pacs", data_dir=tmp_path)
    assert source.lists is not None and {part: len(at) for part, at in source.lists.items()} == {
        "train": 108,
        "val": 12,
        "test": 120,
    }
    assert len(source.train) == 120 and source.note.startswith("split by list files")


def test_without_lists_shares_make_65_10_10_15(tmp_path: Path) -> None:
    data = {"name": "folder", "path": str(make(tmp_path, None)), "split": {"val": 0.1, "test": 0.15}}
    federation = recipe(tmp_path, data=data).federation()
    assert federation.public is not None and federation.notes == ()
    for client in federation.clients:
        public = federation.public.parts[client.id]
        parts = [client.train, public, client.val, client.test]
        assert [len(part) for part in parts] == [39, 6, 6, 9]  # of 60
        assert len(set.union(*map(known, parts))) == 60


def test_other_partitions_draws_and_no_public_set(tmp_path: Path) -> None:
    data = {"name": "folder", "path": str(make(tmp_path, tmp_path)), "samples_per_client": 20, "test_samples": 30}
    federation = recipe(
        tmp_path, data=data, partition={"kind": "iid", "clients": 3}, public=None, method="fml"
    ).federation()
    assert [len(client.train) for client in federation.clients] == [20] * 3
    assert sum(len(client.val) for client in federation.clients) == 12
    assert federation.test is not None and len(federation.test) == 30
    assert sum(len(client.test) for client in federation.clients) == 30
    clients = [{"id": i, "data": data | {"samples_per_client": 10}, "model": "mlp"} for i in "ab"]
    tree = {"models": {"global": "mlp"}, "method": "fedmd", "public": {"share": 0.2}, "clients": clients}
    federation = Recipe.of(tree).federation()
    assert federation.public is not None and len(federation.public) == 6
    assert sum(len(client.test) for client in federation.clients) == 24
    assert [len(client.train) for client in federation.clients] == [10, 10]


def test_images_in_no_list_are_left_out_and_said(tmp_path: Path) -> None:
    make(tmp_path, tmp_path)
    for path in tmp_path.glob("sketch_*.txt"):
        path.write_text("\n".join(line for line in path.read_text().splitlines() if "house" not in line))
    source = load("folder", path=tmp_path)
    assert source.note.endswith(
        "100 of 100 test images are training or validation images too; 20 images are in no list"
    )
    assert source.lists is not None and len(source.lists["test"]) == 100


def damaged(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text())) and None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda folder: (folder / "sketch_crossval_kfold.txt").unlink(),
            "has list files, but not sketch_crossval_kfold.txt; add it, or remove the others",
        ),
        (
            damaged("sketch_test_kfold.txt", lambda text: text.replace("pic_003", "pic_333")),
            "sketch_test_kfold.txt: not a list of this folder's images and their labels (line 4: there is no "
            "image 'sketch/dog/pic_333.png'); replace or remove it",
        ),
        (
            damaged("art_painting_train_kfold.txt", lambda text: text.replace("_001.png 1", "_001.png 0")),
            "(line 2: label 0, but 'dog' is 1)",
        ),
        (
            damaged("art_painting_train_kfold.txt", lambda text: "sketch\n" + text),
            "(line 1: there is no image '')",
        ),
        (
            lambda folder: (folder / "sketch_test_kfold.txt").write_bytes(b"\xff\xfe"),
            "not a list of this folder's",
        ),
    ],
)
def test_lists_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(make(tmp_path, tmp_path))
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        image_folders.images(tmp_path)
    assert "\n" not in str(refused.value)


def test_val_from_test_and_lists_do_not_go_together(tmp_path: Path) -> None:
    data = {"name": "folder", "path": str(make(tmp_path, tmp_path)), "split": {"val_from": "test"}}
    with pytest.raises(InputError, match=r"^data\.split\.val_from: test, but list files say what is val"):
        recipe(tmp_path, data=data).federation()


def test_lists_of_other_folders_are_not_heard(tmp_path: Path) -> None:
    """Only those of this folder's domains count, and the nearest."""
    make(tmp_path / "one", tmp_path)
    (tmp_path / "two" / "photo" / "dog").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "two" / "photo" / "dog" / "1.png")
    assert image_folders.images(tmp_path / "two").lists is None
    for path in tmp_path.glob("*_kfold.txt"):
        (tmp_path / "one" / path.name).write_text(path.read_text().splitlines()[0])
    lists = image_folders.images(tmp_path / "one").lists
    assert lists is not None and [len(positions) for positions in lists.values()] == [2, 2, 2]
    assert np.array_equal(lists["train"], [0, 60])
