"""What people get wrong with tables and texts: one clear line, or it works."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mutua
from mutua.data.table_files import read_table, table_of
from mutua.data.tabular_reading import read_labelled, read_like, unlabelled
from mutua.runs.folder import RunFolder
from mutua.runs.inference import predict

pytest.importorskip("pandas")

GOOD = "age,sex,sick\n" + "\n".join(f"{30 + i},{'fm'[i % 2]},{'yes' if i % 3 else 'no'}" for i in range(30))


def rows(head: str, row: Callable[[int], str], number: int = 30) -> str:
    return head + "\n" + "\n".join(map(row, range(number)))


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no target named": (GOOD, {"target": None}, "target: missing; name the column"),
    "target not there": (GOOD, {"target": "ill"}, "target: 'ill' is not a column of .*known: age, sex, sick"),
    "target misspelt": (GOOD, {"target": "sicc"}, "did you mean 'sick'"),
    "target empty": ("age,sick\n1,\n2,\n", {}, "'sick' of .* has no value in any row"),
    "target of values": (rows("age,sick", lambda i: f"{i},{i / 7}"), {}, "too many or too fine for classes"),
    "class not declared": (GOOD, {"classes": ["yes"]}, "classes: no in .* but not among yes"),
    "dates": (
        rows("day,age,sick", lambda i: f"2024-01-{i + 1:02d},{i},{i % 2}"),
        {},
        "'day' \\(dates, such as 2024",
    ),
    "names": (rows("name,sick", lambda i: f"patient no {i},{i % 2}"), {}, "'name' \\(30 different texts\\)"),
    "mixed types": (
        rows("age,sick", lambda i: f"{i if i else '30 years'},{i % 2}"),
        {},
        "'age' \\(numbers, but 30 years: mend",
    ),
    "declared number is text": (GOOD, {"columns": {"sex": "number"}}, "column 'sex': f, m is no number"),
    "column misspelt": (
        GOOD,
        {"columns": {"agee": "number"}},
        "columns: 'agee' is not a column .*did you mean 'age'",
    ),
    "yes and no in YAML": (GOOD, {"columns": {"sex": [True, False]}}, "write them in quotes"),
    "categories of another column": (
        GOOD,
        {"columns": {"sex": ["female", "male"]}},
        "none of its values \\(f, m\\)",
    ),
    "column twice": ("age,age,sick\n1,2,0\n", {}, "the column 'age' is there twice"),
    "no names of columns": ("63,1,145,0\n67,0,120,1\n", {"target": "4"}, "its first row is numbers"),
    "empty file": ("", {}, "an empty file"),
    "blank file": ("\n\n", {}, "an empty file"),
    "only names": ("age,sick\n", {}, "no rows below the names"),
    "only a target": ("sick\n0\n1\n", {}, "no column that could be an input"),
    "group not there": (GOOD, {"group": "patient"}, "group: 'patient' is not a column"),
    "group with gaps": ("pid,age,sick\n1,3,0\n,4,1\n", {"group": "pid"}, "'pid' of .* has no value in 1 row"),
    "infinite": ("age,sick\n1,0\ninf,1\n", {}, "1 of 2 values are infinite"),
    "ragged": ("age,sick\n1,0\n1,2,3,4\n", {}, "not a readable table"),
    "not UTF-8": ("age,sick\n1,café\n".encode("latin-1"), {}, "not UTF-8 text"),
    "values beside named columns": (
        rows("age,sick", lambda i: f"{i},{i % 2},"),
        {},
        "names 2 columns and the next has 3",
    ),
    "a category that means no value": (
        GOOD,
        {"columns": {"sex": ["f", "None"]}},
        "'None' means no value in a table",
    ),
    "a class that means no value": (GOOD, {"classes": ["yes", "no", "none"]}, "classes: 'none' means no value"),
    "a number beyond float32": ("age,sick\n1e39,0\n1,1\n", {}, "column 'age': values beyond 3.4e\\+38"),
    "several targets": (GOOD, {"target": ["age", "sick"]}, "age, sick are several columns, and .*multi-label"),
    "keys of texts": (GOOD, {"length": 5}, "length: is for data 'text'"),
    "keys of images": (GOOD, {"image_size": 5}, "image_size: is for images"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_refused_in_one_line(mistake: str, tmp_path: Path) -> None:
    content, given, message = REFUSED[mistake]
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    given = {key: value for key, value in {"target": "sick", **given}.items() if value is not None}
    with pytest.raises(mutua.InputError, match=message) as error:
        mutua.load("table", path=path, **given)
    assert "\n" not in str(error.value)


WORKS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "semicolons and decimal commas": (rows("age;bmi;sick", lambda i: f"{i};{i},5;{i % 2}"), {}, 30),
    "tabs": (rows("age\tbmi\tsick", lambda i: f"{i}\t{i}.5\t{i % 2}"), {}, 30),
    "a BOM": (b"\xef\xbb\xbf" + GOOD.encode(), {}, 30),
    "Windows line ends": (GOOD.replace("\n", "\r\n"), {}, 30),
    "spaces around names": (GOOD.replace("age,sex", " age , sex "), {"columns": {"age": "number"}}, 30),
    "quoted commas": ('place,age,sick\n"a, b",3,0\n"c",4,1\n', {}, 2),
    "a column without values": (rows("age,empty,sick", lambda i: f"{i},,{i % 2}"), {}, 30),
    "rows without a target": (GOOD + "\n50,f,\n51,m,\n", {}, 30),
    "an unseen category": (GOOD, {"columns": {"sex": ["f", "d"]}}, 30),
    "duplicate ids": (rows("pid,age,sick", lambda i: f"{i // 3},{i},{i % 2}"), {"group": "pid"}, 30),
    "one class only": (rows("age,sick", lambda i: f"{i},0"), {}, 30),
    "plus and minus": (rows("age,sick", lambda i: f"{i},{'+-'[i % 2]}"), {}, 30),
    "a class named inf": (rows("age,sick", lambda i: f"{i},{['inf', 'sup'][i % 2]}"), {}, 30),
    "blank lines above": ("\n \n" + GOOD, {}, 30),
    "the index of a saved DataFrame": (rows(",age,sick", lambda i: f"{i},{i % 9},{i % 2}"), {}, 30),
    "target of floats": (rows("age,sick", lambda i: f"{i},{i % 2}.0"), {}, 30),
}


@pytest.mark.parametrize("case", WORKS)
def test_works(case: str, tmp_path: Path) -> None:
    content, given, expected = WORKS[case]
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    source = mutua.load("table", path=path, target="sick", **given)
    assert len(source.train) == expected
    if case == "semicolons and decimal commas":
        assert source.train.inputs[:, 1].tolist() == [i + 0.5 for i in range(30)]
    if case == "a column without values":
        assert "'empty' has no value in any row and is left out" in source.note
    if case == "the index of a saved DataFrame":
        assert "'Unnamed: 0' has another whole number in every row" in source.note
    if case == "rows without a target":
        assert "2 rows without a value in 'sick' left out" in source.note


@pytest.mark.parametrize("suffix", [".jsonl", ".npz", ".csv.gz", ".parquet"])
def test_other_kinds_of_files(suffix: str, tmp_path: Path) -> None:
    import pandas

    path = tmp_path / f"t{suffix}"
    held = {"age": [30.0, None, 50.0], "sex": ["f", "m", None], "sick": [0, 1, 1]}
    frame = pandas.DataFrame(held)
    if suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif suffix == ".npz":
        sexes = np.array(["f", "m", ""])
        np.savez(path, age=np.array([30, np.nan, 50]), sex=sexes, sick=np.array([0, 1, 1]))
    elif suffix == ".parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    train = mutua.load("table", path=path, target="sick").train
    assert train.inputs.nan_to_num(-1).tolist() == [[30, 0], [-1, 1], [50, -1]]
    assert train.y.tolist() == [0, 1, 1]


def test_frames_of_polars(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"age": [1.5, None], "sex": ["f", None], "sick": [True, False]})
    federation = mutua.Federation.from_table(
        frame, target="sick", partition=mutua.partitions.IID(clients=1), models="mlp", split={"val": 0, "test": 0}
    )
    assert federation.clients[0].train.inputs.nan_to_num(-1).tolist() == [[1.5, 0], [-1, -1]]


def test_what_pandas_has_for_no_value() -> None:
    import pandas

    frame = pandas.DataFrame(
        {
            "a": pandas.array([1, None], dtype="Int64"),
            "b": pandas.Categorical(["x", None]),
            "c": pandas.array([True, None], dtype="boolean"),
            "y": [0, 1],
        }
    )
    federation = mutua.Federation.from_table(
        frame, target="y", partition=mutua.partitions.IID(clients=1), models="mlp", split={"val": 0, "test": 0}
    )
    assert federation.clients[0].train.inputs.nan_to_num(-1).tolist() == [[1, 0, 1], [-1, -1, -1]]


def test_true_and_false_are_the_same_with_and_without_gaps(tmp_path: Path) -> None:
    for name, gap in (("a", "True"), ("b", "")):
        (tmp_path / f"{name}.csv").write_text(f"smoker,sick\nTrue,False\nFalse,True\n{gap},True\n")
    tables = {name: tmp_path / f"{name}.csv" for name in "ab"}
    split = {"val": 0, "test": 0}
    federation = mutua.Federation.from_tables(tables, target="sick", models="linear", split=split)
    assert federation.classes == ("0", "1")
    held = [client.train.inputs.nan_to_num(-1).flatten().tolist() for client in federation.clients]
    assert [sorted(one) for one in held] == [[0, 1, 1], [-1, 0, 1]]


def test_a_minus_is_read_alike_whatever_rows_are_beside_it() -> None:
    both = {"culture": ["+", "-", "+", "-"], "sick": [0, 1, 0, 1]}
    negative = {"culture": ["-", "-"], "sick": [0, 1]}
    given: dict[str, Any] = {"target": "sick", "models": "linear", "split": {"val": 0, "test": 0}}
    federation = mutua.Federation.from_tables({"a": both, "b": negative}, **given)
    assert federation["b"].train.model_input.features == ("culture=+", "culture=-")
    assert federation["b"].train.inputs.flatten().tolist() == [1, 1]
    template = federation["a"].train.take([])
    assert unlabelled([{"culture": "-"}], template, "x").x.tolist() == [[1]]
    # Elsewhere it is a gap: beside numbers, beside words, and in a column of nothing else.
    number = {"age": [30, 40, 50, 60], "sex": ["f", "-", "m", "m"], "sick": [0, 1, 0, 1]}
    empty = {"age": ["-", "-"], "sex": ["-", "-"], "sick": [0, 1]}
    federation = mutua.Federation.from_tables({"a": number, "b": empty}, **given)
    features = ("age", "age is missing", "sex=f", "sex=m", "sex is missing")
    assert federation["b"].train.model_input.features == features
    assert bool(federation["b"].train.inputs.isnan().all())
    assert sorted(federation["a"].train.inputs[:, 1].nan_to_num(-1).tolist()) == [-1, 0, 1, 1]
    declared = {"columns": {"age": "number", "sex": ["f", "m"]}, "infer": False, **given}
    assert bool(mutua.Federation.from_tables({"b": empty}, **declared)["b"].train.inputs.isnan().all())
    with pytest.raises(mutua.InputError, match="has no value in any row"):
        mutua.Federation.from_tables({"b": {"age": [1, 2], "sick": ["-", "-"]}}, **given)
    only = mutua.Federation.from_tables({"b": {"age": [1, 2], "sick": ["-", "-"]}}, classes=["+", "-"], **given)
    assert only["b"].train.y.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": "sick"}, "group: 'sick' is the target"),
        ({"text": "sick"}, "text: 'sick' is the target"),
        ({"text": "sex", "columns": {"age": "number"}}, "columns: is for data 'table', and this is a text"),
        ({"length": 5}, "length: is for data 'text', and this is a table"),
        ({"target": "age", "task": "regression", "classes": ["years"]}, "classes: with task: regression"),
        ({"public": {"age": [50]}}, "public: a dict; of tables and texts give a share of each client's rows"),
        ({"more": [[1], [2, 3]]}, "'more': lists or other values"),
        ({"more": [{"a": 1}, None]}, "'more': lists or other values"),
    ],
)
def test_mistakes_with_data_frames(given: dict[str, Any], message: str) -> None:
    held = {"age": [30, 40], "sex": ["f", "m"], "sick": [0, 1]}
    held |= {"more": given.pop("more")} if "more" in given else {}
    options: dict[str, Any] = {"target": "sick", "models": "linear", **given}
    options["split"] = {"val": 0, "test": 0}
    with pytest.raises(mutua.InputError, match=message):
        mutua.Federation.from_table(held, partition=mutua.partitions.IID(clients=1), **options)


def test_a_table_of_arrow() -> None:
    arrow = pytest.importorskip("pyarrow")
    held = table_of(arrow.table({"age": [1.5, None], "sex": ["f", "m"]}))
    assert [*held.columns] == ["age", "sex"] and np.isnan(held["age"]).tolist() == [False, True]  # type: ignore[arg-type]


def test_tables_without_the_names_of_clients() -> None:
    with pytest.raises(mutua.InputError, match="tables: a list; give a table by client"):
        mutua.Federation.from_tables([{"a": [1]}], target="a", models="linear")  # type: ignore[arg-type]


def test_reading_tells_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(rows("a,b", lambda i: f"{i},{i}", 100_000))
    told: list[tuple[int, int]] = []
    assert len(read_table(path, lambda done, total: told.append((done, total)))) == 100_000
    size = path.stat().st_size
    assert told[-1] == (size, size) and len(told) > 2


def test_partition_by_column_needs_a_table() -> None:
    tree = {"data": "mnist5k", "partition": {"kind": "column", "column": "x"}, "models": {"global": "mlp"}}
    with pytest.raises(mutua.InputError, match=r"partition\.kind: column is for tables and texts"):
        mutua.Recipe.of({**tree, "method": "fml"}).federation()


def test_rotated_needs_images() -> None:
    tree = {"data": "hospitals", "partition": {"kind": "rotated", "angles": [0, 30]}, "models": {"global": "mlp"}}
    with pytest.raises(mutua.InputError, match="rotated needs images"):
        mutua.Recipe.of({**tree, "method": "fml"}).federation()


def test_augmentation_needs_images() -> None:
    tree = {"data": "hospitals", "partition": "domains", "models": {"global": "mlp"}, "method": "fml"}
    recipe = mutua.Recipe.of({**tree, "partition": {"kind": "domains"}, "augment": ["flip"], "rounds": 1})
    with pytest.raises(mutua.MutuaError, match="'flip' needs images"):
        mutua.run(recipe.method, recipe.federation(), plan=recipe.plan())


@pytest.mark.parametrize(
    ("data", "model", "message"),
    [
        ("hospitals", "resnet18", "'resnet18' takes images, and the data is a table; use linear, mlp, res-mlp"),
        ("hospitals", "text-gru", "'text-gru' takes texts, and the data is a table"),
        ("phrases", "mlp", "'mlp' takes images or plain features or a table, and the data is texts; use text-bag"),
        ("mnist5k", "res-mlp", "'res-mlp' takes plain features or a table, and the data is images"),
    ],
)
def test_a_model_for_other_data_is_refused_by_name(data: str, model: str, message: str) -> None:
    samples = mutua.load(data).train
    federation = mutua.Federation.from_samples(samples, partition=mutua.partitions.IID(clients=2), models=model)
    with pytest.raises(mutua.InputError, match=message):
        mutua.run(mutua.methods.Independent(), federation, rounds=1)


def test_texts_of_files(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("it works\t1\n\t0\n" + "long " * 5000 + "\t1\n")
    train = mutua.load("text", path=tmp_path / "t.txt", length=6).train
    assert (train.x != 0).sum(1).tolist() == [2, 0, 6] and train.y.tolist() == [1, 0, 1]
    lines = [json.dumps({"said": text, "y": y}) for text, y in (("good", "a"), ("", "b"), (None, "a"))]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    train = mutua.load("text", path=tmp_path / "t.jsonl", text="said", target="y", length=3).train
    assert (train.x != 0).sum(1).tolist() == [1, 0, 0] and train.classes == ("a", "b")


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        ("no tab here\n", {}, "line 1 has no tab"),
        ("good\t1\n\n\nbad\n", {}, "line 4 has no tab"),
        ("", {}, "an empty file"),
    ],
)
def test_mistakes_of_lines(content: str, given: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text(content)
    with pytest.raises(mutua.InputError, match=message):
        mutua.load("text", path=tmp_path / "t.txt", **given)


def test_texts_without_labels_are_predicted(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("it works\t1\nnot so\t0\n")
    template = mutua.load("text", path=path, length=6).train.take([])
    path.write_text("it works\n\nnot so\n")
    samples, named = read_like(path, template)
    assert named is None and (samples.x != 0).sum(1).tolist() == [2, 2]
    with pytest.raises(mutua.InputError, match="line 1 has no tab"):
        read_labelled(path, template)
    for given in (["it works", None], np.array(["it works", None], object), iter(["it works", float("nan")])):
        assert torch.equal(unlabelled(given, template, "x").x[:, :2] != 0, torch.tensor([[True] * 2, [False] * 2]))
    for wrong in (3, "it works", [3]):
        with pytest.raises(mutua.InputError, match="x: give a list of texts, or a table with the column 'text'"):
            unlabelled(wrong, template, "x")


def test_mistakes_of_texts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("said,y\ngood,1\nbad,0\n")
    given: dict[str, Any] = {"path": tmp_path / "t.csv", "target": "y"}
    with pytest.raises(mutua.InputError, match="text: missing; name the column"):
        mutua.load("text", **given)
    with pytest.raises(mutua.InputError, match="text: 'word' is not a column"):
        mutua.load("text", text="word", **given)
    with pytest.raises(mutua.InputError, match="columns: is for data 'table'"):
        mutua.load("text", text="said", columns={"said": "ignore"}, **given)
    with pytest.raises(mutua.InputError, match=r"vocabulary: .*give a file"):
        mutua.load("text", text="said", vocabulary=tmp_path / "none.txt", **given)
    with pytest.raises(mutua.InputError, match="path: missing"):
        mutua.load("text", target="y")


LABELS = rows("age,pain,fever,los", lambda i: f"{i},{'yes' if i % 2 else 'no'},{int(i > 14)},{i / 10}")


def test_several_labels_and_several_values_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(LABELS + "\n40,yes,,4.0\n")
    both = mutua.load("table", path=path, target=["pain", "fever"], kind="multi-label")
    assert both.train.classes == ("pain", "fever") and both.train.model_input.features == ("age", "los")
    assert both.train.y.tolist() == [[i % 2, i > 14] for i in range(30)]
    assert "1 row without a value in 'pain, fever' left out" in both.note
    two = mutua.load("table", path=path, target=["los", "age"], kind="regression").train
    assert two.y[:3].flatten().tolist() == pytest.approx([0, 0, 0.1, 1, 0.2, 2])
    with pytest.raises(mutua.InputError, match=r"'age': 2, 3, 4, where task: multi-label needs 0 or 1"):
        mutua.load("table", path=path, target=["age", "fever"], kind="multi-label")


def test_several_labels_are_predicted_measured_and_joined(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(LABELS)
    given: dict[str, Any] = {"target": ["pain", "fever"], "task": "multi-label", "models": "linear"}
    federation = mutua.Federation.from_table(
        path, partition=mutua.partitions.IID(clients=2), global_model="linear", **given
    )
    result = mutua.run(mutua.methods.FML(), federation, rounds=1, batch_size=8)
    run = mutua.load_run(result.save(tmp_path / "run"))
    template = federation.clients[0].train.take([])
    seen, named = read_like(path, template)
    assert named == ["pain", "fever"] and seen.y.tolist() == [[i % 2, i > 14] for i in range(30)]
    held = {"age": [3, 4], "los": [1, 2]}
    assert run.predictor("c0")(held).shape == (2, 2)
    assert len(read_labelled(path, template).samples) == 30
    path.write_text("age,los\n3,1\n")  # nothing to measure with
    assert read_like(path, template)[1] is None


def test_rows_without_a_class_are_no_mistakes_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(GOOD)
    federation = mutua.Federation.from_table(
        path, target="sick", partition=mutua.partitions.IID(clients=1), models="linear", global_model="linear"
    )
    mutua.run("fedavg", federation, rounds=0, workers=1, progress=False).save(tmp_path / "run")
    model = RunFolder.open(tmp_path / "run").client("c0")
    wanted = predict(model, path).accuracy
    path.write_text(GOOD + "\n" + "\n".join(f"{40 + i},m," for i in range(30)))
    assert predict(model, path).accuracy == wanted and wanted is not None


def test_an_array_of_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", sex=np.array(["f", "m"], dtype=object), sick=np.array([0, 1]))
    with pytest.raises(mutua.InputError, match=r"Python objects.*dtype=str"):
        mutua.load("table", path=tmp_path / "t.npz", target="sick")


def test_values_of_data_frames() -> None:
    import pandas

    frame = pandas.DataFrame({"age": [float(i) for i in range(30)], "los": [i / 3 for i in range(30)]})
    huber = mutua.tasks.Regression(loss="huber", mean=5)
    made = mutua.Federation.from_tables({"a": frame, "b": frame}, target="los", task=huber, models="linear")
    assert {client.aim for client in made.clients} == {huber}
    result = mutua.run(mutua.methods.Independent(), made, rounds=1, batch_size=8)
    assert result.history.headline.metric == "rmse" and result.mean_score() < 20
