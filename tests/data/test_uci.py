"""The two sets of the UCI archive, as published (where MUTUA_DATA has them) and in small."""

import hashlib
import io
import zipfile
from pathlib import Path
from typing import Any
from urllib.request import Request

import numpy as np
import pytest
import torch

import mutua
from mutua.data import download, sources, uci

HERE = sources.data_folder()


def published(name: str) -> Any:
    try:
        return mutua.load(name)
    except mutua.InputError as error:
        pytest.skip(str(error))


def test_heart_disease_as_flamby_prepares_it() -> None:
    train = published("heart-disease").train
    counts = dict(zip(train.domains, train.domain.bincount().tolist(), strict=True))
    assert counts == {"cleveland": 303, "hungarian": 261, "switzerland": 46, "va": 130}
    assert train.channels == 13 and train.classes == ("healthy", "diseased")
    # By hand, of the first file: the age of those who are ill.
    held = [line.split(",") for line in (HERE / "heart-disease" / uci.HOSPITALS[0]).read_text().split()]
    ages = [float(row[0]) for row in held if int(row[13]) > 0]
    mine = train.inputs[(train.domain == 0) & (train.y == 1), 0]
    assert sorted(mine.tolist()) == sorted(ages)


def test_sentiment_sentences_as_published() -> None:
    train = published("sentiment-sentences").train
    assert train.domains == ("amazon", "imdb", "yelp") and train.domain.bincount().tolist() == [1000] * 3
    assert train.counts().tolist() == [1500, 1500]


def small_heart(folder: Path) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in uci.HOSPITALS:
        rows = [
            [50, 1, i % 4 + 1, 130, 200, 0, i % 3, 150, 0, rng.random(), "?", "?", 3, i % 5] for i in range(20)
        ]
        rows[0][3] = "?"  # a row that is left out
        (folder / name).write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")


def test_heart_disease_in_small(tmp_path: Path) -> None:
    small_heart(tmp_path / "heart-disease")
    train = mutua.load("heart-disease", data_dir=tmp_path).train
    assert len(train) == 4 * 19 and train.counts().tolist() == [12, 64]
    assert train.model_input.features[-5:] == ("cp=2", "cp=3", "cp=4", "restecg=1", "restecg=2")
    assert not torch.isnan(train.inputs).any()
    (tmp_path / "heart-disease" / uci.HOSPITALS[3]).unlink()  # an unfinished download
    with pytest.raises(mutua.InputError, match=r"heart-disease is not in .*mutua data get heart-disease"):
        mutua.load("heart-disease", data_dir=tmp_path)


def zipped(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"sentiment labelled sentences/{name}.txt", content)
            archive.writestr(f"__MACOSX/._{name}.txt", b"rubbish")
    return made.getvalue()


class Response(io.BytesIO):
    status = 200


@pytest.mark.parametrize("wrong", [None, "sum", "member", "not a zip"])
def test_members_of_an_archive_are_checked(
    wrong: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"Good.\t1\nBad.\t0\n"
    md5 = hashlib.md5(content).hexdigest()
    body = b"<html>" if wrong == "not a zip" else zipped(one=b"other" if wrong == "sum" else content)
    names = ("one.txt", "two.txt") if wrong == "member" else ("one.txt",)
    file = download.File("a.zip", "https://example.org/", 0, members=tuple((name, md5) for name in names))
    monkeypatch.setitem(download.FILES, "sentiment-sentences", (file,))
    asked: list[str] = []

    def answer(request: Request, timeout: float) -> Response:
        asked.append(request.full_url)
        return Response(body)

    monkeypatch.setattr(download, "urlopen", answer)
    if wrong is None:
        folder = tmp_path / "sentiment-sentences"
        assert download.get("sentiment-sentences", tmp_path) == [folder]
        assert [path.name for path in folder.iterdir()] == ["one.txt"] and asked == ["https://example.org/a.zip"]
        assert download.get("sentiment-sentences", tmp_path) == [folder] and len(asked) == 1
        (folder / "one.txt").write_text("changed")
        with pytest.raises(mutua.InputError, match="remove it to get it again"):
            download.get("sentiment-sentences", tmp_path)
        return
    with pytest.raises(mutua.RunError, match=r"as published|has no two\.txt|not a zip|nothing was fetched"):
        download.get("sentiment-sentences", tmp_path)
    assert not any(path.suffix in (".part", ".txt") and "two" in path.name for path in tmp_path.rglob("*"))
