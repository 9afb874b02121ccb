"""The data sets that mutua knows by name: where they may be, how they are read, what is declared about them."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mutua.data import array_files, formats, image_folders, made_up, uci
from mutua.data.column_specs import ColumnSpec
from mutua.data.formats import Arrays
from mutua.data.samples import Preprocess
from mutua.data.table_columns import RawTable
from mutua.data.tabular_sources import Tabular

EMBEDDED = Path(__file__).with_name("mnist5k.xz")
DIGITS = tuple("0123456789")
MADE_UP = Path(made_up.__file__)


@dataclass(frozen=True)
class Place:
    """A path below the data folder where a set may be, how to read it there, and a note about it."""

    path: str
    read: Callable[[Path], Arrays | RawTable]
    note: str = ""
    files: tuple[str, ...] = ()
    """What a folder must hold, so that it is not an unfinished download."""


@dataclass(frozen=True)
class Known:
    """A set known by name; `preprocess` is declared here, never computed from a user's data."""

    about: str
    images: str
    classes: int
    places: tuple[Place, ...]
    preprocess: Preprocess
    how: str
    class_names: tuple[str, ...] | None = None
    tabular: Tabular | None = None
    """Of a table or of texts: the target and what else a recipe would say."""
    by: str | None = None
    """The column that names each row's client."""


def _places(read: Callable[[Path], Arrays | RawTable], *paths: str) -> tuple[Place, ...]:
    return tuple(Place(path, read) for path in paths)


def _embedded(path: Path) -> Arrays:
    x = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8).reshape(-1, 28, 28).copy()
    return Arrays(x, np.arange(len(x)) % 10)


def _grey(mean: float, std: float) -> Preprocess:
    return Preprocess(1 / 255, (mean,), (std,))


KNOWN: dict[str, Known] = {
    "mnist5k": Known(
        about="handwritten digits: the sample inside mutua",
        images="5,000 of 28x28",
        classes=10,
        places=_places(_embedded, str(EMBEDDED)),
        preprocess=_grey(0.1307, 0.3081),
        how="it comes with mutua",
        class_names=DIGITS,
    ),
    "mnist": Known(
        about="handwritten digits",
        images="60,000 + 10,000 of 28x28",
        classes=10,
        places=_places(array_files.npz, "mnist.npz") + _places(formats.idx, "mnist", "MNIST/raw"),
        preprocess=_grey(0.1307, 0.3081),
        how="mutua data get mnist",
        class_names=DIGITS,
    ),
    "fashion-mnist": Known(
        about="articles of clothing",
        images="60,000 + 10,000 of 28x28",
        classes=10,
        # The last is where Debian's package dataset-fashion-mnist puts it.
        places=_places(array_files.npz, "fashion-mnist.npz")
        + _places(formats.idx, "fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
        preprocess=_grey(0.2860, 0.3530),
        how="mutua data get fashion-mnist (Debian: apt install dataset-fashion-mnist)",
        class_names=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle-boot"),
        ),
    ),
    "cifar10": Known(
        about="photographs of animals and vehicles",
        images="50,000 + 10,000 of 32x32x3",
        classes=10,
        places=_places(array_files.npz, "cifar10.npz")
        + _places(
            formats.cifar,
            *("cifar10/cifar-10-python.tar.gz", "cifar-10-python.tar.gz", "cifar-10-batches-py"),
            *("cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
        ),
        preprocess=Preprocess(1 / 255, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        how="mutua data get cifar10",
    ),
    "cifar100": Known(
        about="photographs of a hundred kinds of things",
        images="50,000 + 10,000 of 32x32x3",
        classes=100,
        places=_places(array_files.npz, "cifar100.npz")
        + _places(
            formats.cifar,
            *("cifar100/cifar-100-python.tar.gz", "cifar-100-python.tar.gz", "cifar-100-python"),
            *("cifar-100-binary.tar.gz", "cifar-100-binary"),
        )
        + (Place("cifar100-half.npz", array_files.npz, "half of CIFAR-100: 250 + 50 images per class"),),
        preprocess=Preprocess(1 / 255, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        how="mutua data get cifar100",
    ),
    "eurosat": Known(
        about="land use seen by satellite",
        images="27,000 of 64x64x3",
        classes=10,
        places=_places(array_files.npz, "eurosat.npz")
        + _places(
            image_folders.images,
            "eurosat/EuroSAT_RGB",
            "EuroSAT_RGB",
            "eurosat/2750",
            "EuroSAT/2750",
            "2750",
            "eurosat",
            "EuroSAT",
        ),
        preprocess=_grey(0.5, 0.5),
        how="mutua data get eurosat",
    ),
    "pacs": Known(
        about="seven kinds of things as photographs, paintings, cartoons and sketches",
        images="9,991 of 227x227x3",
        classes=7,
        places=_places(array_files.npz, "pacs.npz")
        + _places(image_folders.images, "pacs/kfold", "PACS/kfold", "pacs", "PACS")
        + (Place("pacs64.npz", array_files.npz, "PACS reduced to 64x64 pixels"),),
        preprocess=_grey(0.5, 0.5),
        how="download it by hand from https://dali-dl.github.io/project_iccv2017.html and make the folders "
        "pacs/DOMAIN/CLASS/*.jpg with the domains art_painting, cartoon, photo, sketch, and its "
        "lists DOMAIN_train_kfold.txt, DOMAIN_crossval_kfold.txt, DOMAIN_test_kfold.txt beside them",
    ),
    "office-home": Known(
        about="things of office and home as art, clipart, product pictures and photographs",
        images="15,588 of many sizes, RGB",
        classes=65,
        places=_places(array_files.npz, "office-home.npz")
        + _places(image_folders.images, "office-home", "OfficeHomeDataset_10072016", "OfficeHome"),
        preprocess=_grey(0.5, 0.5),
        how="download it by hand from https://www.hemanthdv.org/officeHomeDataset.html and make the folders "
        "office-home/DOMAIN/CLASS/*.jpg with the domains Art, Clipart, Product, Real World",
    ),
    "hospitals": Known(
        about="made-up patients of three hospitals, which measure different things: a sample inside mutua",
        images="450 rows of 7 columns",
        classes=2,
        places=_places(made_up.hospitals, str(MADE_UP)),
        preprocess=Preprocess(),
        how="it comes with mutua",
        class_names=("healthy", "ill"),
        tabular=Tabular(
            target="diagnosis",
            group="patient",
            columns={
                **dict.fromkeys(("age", "pressure", "cholesterol", "troponin"), ColumnSpec(kind="number")),
                "sex": ColumnSpec(kind="category", categories=("f", "m"), missing=False),
                "smoker": ColumnSpec(kind="category", categories=("never", "former", "current")),
                "ecg": ColumnSpec(kind="category", categories=("normal", "abnormal", "unclear")),
            },
        ),
        by="hospital",
    ),
    "phrases": Known(
        about="made-up sentences of praise and complaint at three sites: a sample inside mutua",
        images="450 short texts",
        classes=2,
        places=_places(made_up.phrases, str(MADE_UP)),
        preprocess=Preprocess(),
        how="it comes with mutua",
        class_names=("negative", "positive"),
        tabular=Tabular(target="opinion", text="text", length=12, vocabulary=500),
        by="site",
    ),
    "heart-disease": Known(
        about="patients of four hospitals with and without heart disease",
        images="740 rows of 10 columns",
        classes=2,
        places=(Place("heart-disease", uci.heart_disease, files=uci.HOSPITALS),),
        preprocess=Preprocess(),
        how="mutua data get heart-disease",
        class_names=("healthy", "diseased"),
        tabular=Tabular(
            target="disease",
            columns={
                **dict.fromkeys(uci.NUMBER_COLUMNS, ColumnSpec(kind="number", missing=False)),
                **{
                    name: ColumnSpec(kind="category", categories=levels, missing=False, drop_first=True)
                    for name, levels in uci.CATEGORIES.items()
                },
            },
        ),
        by="hospital",
    ),
    "sentiment-sentences": Known(
        about="sentences of praise and complaint from amazon, imdb and yelp",
        images="3,000 texts",
        classes=2,
        places=(Place("sentiment-sentences", uci.sentiment_sentences, files=uci.SITES),),
        preprocess=Preprocess(),
        how="mutua data get sentiment-sentences",
        class_names=("negative", "positive"),
        tabular=Tabular(target="opinion", text="text", length=40),
        by="site",
    ),
}
