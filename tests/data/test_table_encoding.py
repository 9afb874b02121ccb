"""Tables become inputs: as scikit-learn does it, and never by another's rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import mutua
from mutua.data.column_specs import ColumnSpec, choose_columns
from mutua.data.samples import Samples
from mutua.data.splits import Split, grouped, split_and_deal
from mutua.data.table_columns import RawTable, column_of
from mutua.data.table_encoding import Column, TableEncoding
from mutua.data.table_files import table_of


def encoded(numbers: np.ndarray, **how: object) -> torch.Tensor:
    columns = tuple(Column(f"n{k}") for k in range(numbers.shape[1]))
    encoding = TableEncoding(columns, **how)  # type: ignore[arg-type]
    x = encoding.stored(RawTable({f"n{k}": column for k, column in enumerate(numbers.T)}, "test"))
    return encoding.fit(x)(x)


@pytest.mark.parametrize("fill", ["mean", "median"])
def test_numbers_are_scaled_and_filled_as_by_scikit_learn(fill: str) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal([3, -200, 0.01], [1, 50, 0.001], (60, 3))
    numbers[rng.random(numbers.shape) < 0.2] = np.nan
    imputed = SimpleImputer(strategy=fill, add_indicator=True).fit_transform(numbers)
    scaler = StandardScaler().fit(numbers)  # which leaves out what is missing
    wanted = np.concatenate([scaler.transform(imputed[:, :3]), imputed[:, 3:]], 1)
    assert np.allclose(encoded(numbers, fill=fill), wanted, atol=2e-5)


def test_a_column_without_spread_or_without_values_becomes_zeros() -> None:
    numbers = np.array([[5.0, np.nan, 1e7 + 1], [5.0, np.nan, 1e7 + 1]])
    assert encoded(numbers).tolist() == [[0, 0, 0, 0, 1, 0]] * 2


def test_no_scaling_leaves_numbers_as_they_are() -> None:
    numbers = np.array([[1.0], [3.0], [np.nan]])
    assert encoded(numbers, scale="none").tolist() == [[1, 0], [3, 0], [2, 1]]


@pytest.mark.parametrize("drop", [False, True])
def test_categories_are_one_hot_as_by_scikit_learn(drop: bool) -> None:
    held = np.random.default_rng(1).choice(["a", "b", "c"], 40)
    encoding = TableEncoding((Column("c", "category", ("a", "b", "c"), missing=False, drop_first=drop),))
    x = encoding.stored(table_of({"c": held}))
    theirs = OneHotEncoder(drop="first" if drop else None, sparse_output=False).fit_transform(held[:, None])
    assert np.array_equal(encoding.fit(x)(x), theirs)


def test_an_unknown_category_is_none_of_them_and_a_missing_one_is_told() -> None:
    encoding = TableEncoding((Column("c", "category", ("a", "b")),))
    x = encoding.stored(table_of({"c": ["b", "zebra", None, "?"]}))
    assert encoding.fit(x)(x).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert encoding.input(x).features == ("c=a", "c=b", "c is missing")


def test_columns_are_found_by_name_and_lacking_ones_are_missing() -> None:
    encoding = TableEncoding((Column("a"), Column("b")))
    x = encoding.stored(table_of({"b": [1, 2], "other": ["x", "y"]}))
    assert torch.equal(x.nan_to_num(-1), torch.tensor([[-1.0, 1.0], [-1.0, 2.0]]))


def test_declared_numbers_are_not_fitted() -> None:
    encoding = TableEncoding((Column("a", mean=10, std=2, fill=14),))
    x = encoding.stored(table_of({"a": [12.0, None, 8.0]}))
    assert encoding.fit(x)(x)[:, 0].tolist() == [1, 2, -1]


def test_it_must_be_fitted() -> None:
    encoding = TableEncoding((Column("a"),))
    with pytest.raises(mutua.InputError, match="not fitted"):
        encoding(torch.zeros(1, 1))


# What is read off tables


def test_kinds_are_inferred_over_all_tables() -> None:
    one = table_of({"age": [1, 2], "sex": ["f", "m"], "only": ["x", "y"]}, "one")
    two = table_of({"age": [3, None], "sex": ["d", "m"], "flag": [True, False]}, "two")
    columns, inferred, notes = choose_columns([one, two], {}, True, [])
    assert columns == (
        Column("age"),
        Column("sex", "category", ("d", "f", "m"), missing=False),
        Column("only", "category", ("x", "y")),
        Column("flag"),
    )
    assert inferred == ["age", "sex", "only", "flag"] and notes == []


def test_what_is_declared_counts() -> None:
    table = table_of({"cp": [1.0, 4.0, None], "age": [1, 2, 3], "id": [7, 8, 9]}, "t")
    declared = {"cp": ColumnSpec(kind="category"), "id": ColumnSpec(kind="ignore")}
    columns, inferred, _ = choose_columns([table], declared, True, [])
    assert columns == (Column("cp", "category", ("1", "4")), Column("age", missing=False))
    assert inferred == ["cp", "age"]
    alone, _, _ = choose_columns([table], declared, False, [])
    assert [column.name for column in alone] == ["cp"]


def test_texts_that_are_numbers_are_numbers() -> None:
    column = column_of(["1", " 2.5", "1e3", "", "NA", None], "c")
    assert np.array_equal(column, [1, 2.5, 1000, np.nan, np.nan, np.nan], equal_nan=True)  # type: ignore[arg-type]


# Nobody's rows but a client's own


def frame(seed: int, rows: int) -> dict[str, list[object]]:
    rng = np.random.default_rng(seed)
    age, bmi = rng.normal(50 + seed, 10, rows), rng.normal(25, 4, rows)
    bmi[rng.random(rows) < 0.2] = np.nan
    return {"age": [*age], "bmi": [*bmi], "sex": [*rng.choice(["f", "m"], rows)], "sick": [*(age > 50 + seed)]}


DECLARED = {"age": "number", "bmi": "number", "sex": ["f", "m"]}


def statistics(federation: mutua.Federation, client: str) -> object:
    encoding = federation[client].train.preprocess
    assert isinstance(encoding, TableEncoding)
    return encoding.statistics


def by_hand(federation: mutua.Federation, client: str) -> list[tuple[float, float]]:
    member = federation[client]
    shown = member.train if member.opt_in is None else member.train.take(member.opt_in.nonzero()[:, 0])
    x = shown.inputs.double().numpy()
    return [(float(np.nanmean(x[:, k])), float(np.nanstd(x[:, k]))) for k in range(2)]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(20, 60), scale=st.floats(2, 1e4))
def test_no_fitted_number_depends_on_another_client(seed: int, rows: int, scale: float) -> None:
    own, other = frame(seed % 7, rows), frame(3, 40)
    changed = {**other, "age": [scale * value for value in other["age"]]}  # type: ignore[operator]
    made = [
        mutua.Federation.from_tables({"a": own, "b": b}, target="sick", models="linear", seed=seed)
        for b in (other, changed)
    ]
    assert statistics(made[0], "a") == statistics(made[1], "a")
    assert statistics(made[0], "b") != statistics(made[1], "b")


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(30, 60), scale=st.floats(2, 1e4))
def test_no_fitted_number_depends_on_held_out_or_opted_out_rows(seed: int, rows: int, scale: float) -> None:
    own = frame(seed % 5, rows)
    marks = np.random.default_rng(seed).random(rows) < 0.3
    own["out"] = [*marks]

    def dealt(rows: dict[str, list[object]]) -> mutua.Federation:
        return mutua.Federation.from_table(
            rows,
            target="sick",
            columns=DECLARED,
            infer=False,
            opted_out="out",
            partition=mutua.partitions.IID(clients=2),
            models="linear",
            classes=["0", "1"],
            seed=seed,
        )

    federation = dealt(own)
    for client in ("c0", "c1"):
        found = statistics(federation, client)
        wanted = by_hand(federation, client)
        assert np.allclose([(s.mean, s.std) for s in found], wanted, rtol=1e-5)  # type: ignore[attr-defined]
    louder = {**own, "age": [v * (scale if out else 1) for v, out in zip(own["age"], marks, strict=True)]}  # type: ignore[operator]
    again = dealt(louder)
    assert all(statistics(again, client) == statistics(federation, client) for client in ("c0", "c1"))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), often=st.floats(0.05, 0.95))
def test_balanced_weights_are_of_own_opted_in_training_rows(seed: int, often: float) -> None:
    rng = np.random.default_rng(seed)
    marks = [*(rng.random(60) < 0.3)]
    labels, others = [*(rng.random(60) < 0.4)], [*(rng.random(60) < often)]
    options: dict[str, Any] = {
        "target": "sick",
        "models": "linear",
        "columns": DECLARED,
        "infer": False,
        "seed": seed,
    }
    options |= {"classes": ["0", "1"], "opted_out": "out", "task": {"class_weights": "balanced"}}
    louder = [other if out else own for own, other, out in zip(labels, others, marks, strict=True)]
    rows = {**frame(0, 60), "out": marks}

    def client(own: list[bool], other: list[bool]) -> mutua.Client:
        tables = {"a": {**rows, "sick": own}, "b": {**rows, "sick": other}}
        return mutua.Federation.from_tables(tables, **options)["a"]

    here = client(labels, labels)
    shown = here.opted_in.y.double()
    held = {float(k): float((shown == k).sum()) for k in (0, 1)}
    if all(held.values()):
        wanted = [len(shown) / (2 * held[k]) for k in (0.0, 1.0)]
        assert here.task.weights == pytest.approx(wanted)
    assert client(labels, others).task.weights == here.task.weights
    # Which rows train may depend on a row's label, but hidden rows are split among themselves.
    assert client(louder, labels).task.weights == here.task.weights


def test_a_client_that_has_opted_out_whole_scales_by_its_own_rows() -> None:
    rows = frame(0, 40)
    recipe_like = mutua.Federation.from_tables({"a": rows}, target="sick", models="linear", columns=DECLARED)["a"]
    out = mutua.Client(
        "a",
        Samples(
            recipe_like.train.x,
            recipe_like.train.y,
            recipe_like.train.classes,
            recipe_like.train.preprocess.declared,
            opted_out=torch.ones(len(recipe_like.train), dtype=torch.bool),
        ),
        recipe_like.val,
        recipe_like.test,
        "linear",  # type: ignore[arg-type]
    )
    assert not out.takes_part and out.train.preprocess == recipe_like.train.preprocess


def test_undeclared_columns_are_refused_where_rows_are_opted_out() -> None:
    rows = {**frame(0, 40), "out": [False, True] * 20}
    with pytest.raises(mutua.InputError, match="must be declared where rows are opted out"):
        mutua.Federation.from_table(
            rows, target="sick", opted_out="out", partition=mutua.partitions.IID(clients=2), models="mlp"
        )


def test_public_samples_are_scaled_by_who_uses_them() -> None:
    tables = {"a": frame(0, 60), "b": frame(40, 60)}
    federation = mutua.Federation.from_tables(tables, target="sick", models="linear").sharing(0.2, 0)
    assert federation.public is not None
    assert not federation.public.whole.preprocess.fitted  # nobody's mean is told
    own = federation["a"].train.preprocess
    seen = federation.public.seen_by(own).whole
    assert torch.equal(seen.preprocess(seen.x), own(federation.public.whole.x))


# Groups


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(12, 80),
    groups=st.integers(6, 30),
    clients=st.integers(1, 3),
    hidden=st.booleans(),
)
def test_a_group_never_straddles_a_split(seed: int, rows: int, groups: int, clients: int, hidden: bool) -> None:
    rng = np.random.default_rng(seed)
    samples = Samples(
        torch.arange(rows)[:, None].float(),
        torch.from_numpy(rng.integers(0, 2, rows)),
        ("no", "yes"),
        group=torch.from_numpy(rng.integers(0, groups, rows)),
        opted_out=torch.from_numpy(rng.random(rows) < 0.3) if hidden else None,
    )
    try:
        partition = mutua.partitions.IID(clients=clients)
        dealt = split_and_deal(samples, None, partition, Split(val=0.2, test=0.3), seed=seed)
    except mutua.InputError:
        return
    sides: dict[int, set[str]] = {}
    for client in dealt.clients:
        for side in ("train", "val", "test"):
            part = getattr(client, side)
            for group in part.group.unique().tolist():
                sides.setdefault(group, set()).add(side)
    assert all(len(found) == 1 for found in sides.values())


def test_groups_are_split_by_their_commonest_class() -> None:
    group = np.repeat(np.arange(40), 3)
    y = (group < 20).astype(np.int64)
    train, test = grouped(y, group, [0.75, 0.25], np.random.default_rng(0))
    assert sorted([*train, *test]) == list(range(120))
    assert (len(train), y[train].mean(), y[test].mean()) == (90, 0.5, 0.5)


def test_a_column_names_each_rows_client() -> None:
    rows = {**frame(0, 60), "hospital": ["St. Mary's", "nørd"] * 30}
    federation = mutua.Federation.from_table(
        rows, target="sick", partition=mutua.partitions.ByColumn(column="hospital"), models="linear"
    )
    assert [client.id for client in federation.clients] == ["St._Mary_s", "n_rd"]
    assert all(len(c.train) + len(c.val) + len(c.test) == 30 for c in federation.clients)
    assert "hospital" not in str(federation.clients[0].train.model_input)


def test_clients_with_files_of_their_own_declare_their_columns(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    lines = "\n".join(f"{30 + i},{'fm'[i % 2]},2024-01-{i % 28 + 1},{i % 2}" for i in range(20))
    (tmp_path / "a.csv").write_text("age,sex,day,sick\n" + lines)
    data = {"name": "table", "path": str(tmp_path / "a.csv"), "target": "sick"}
    columns = {"day": "ignore", "sex": ["m", "f", "d"]}
    clients = [{"id": name, "data": {**data, "columns": columns}, "model": "mlp"} for name in "abc"]
    clients[1]["data"]["columns"] = dict(reversed(columns.items()))  # type: ignore[index]
    clients[2]["data"]["columns"] = {**columns, "age": "number"}  # type: ignore[index]
    tree = {"clients": clients, "models": {"global": "mlp"}, "method": "fml", "rounds": 1}
    federation = mutua.Recipe.of(tree).federation()
    features = ("age", "age is missing", "sex=m", "sex=f", "sex=d", "sex is missing")
    assert {client.train.model_input.features for client in federation.clients} == {features}
    # Two of them say the same of one file, so they share its rows.
    sizes = [sum(len(part) for part in (c.train, c.val, c.test)) for c in federation.clients]
    assert sizes == [10, 10, 20]
    assert [note for note in federation.notes if "in common" in note] == [
        "c: the same data as others, differently drawn: they may have samples in common"
    ]


def test_the_files_of_clients_are_matched_by_name(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "a.csv").write_text("age,sex,sick\n" + "\n".join(f"{30 + i},f,{i % 2}" for i in range(20)))
    (tmp_path / "b.csv").write_text("sick;bmi;age\n" + "\n".join(f"{i % 2};{i},5;{40 + i}" for i in range(20)))
    clients = [
        {
            "id": name,
            "data": {"name": "table", "path": str(tmp_path / f"{name}.csv"), "target": "sick"},
            "model": "mlp",
        }
        for name in "ab"
    ]
    tree = {"clients": clients, "models": {"global": "linear"}, "method": "fedavg", "rounds": 1}
    federation = mutua.Recipe.of(tree).federation()
    columns = [client.train.model_input.features for client in federation.clients]
    assert columns[0] == columns[1] == ("age", "bmi", "bmi is missing", "sex=f", "sex is missing")
    assert bool(federation["a"].train.inputs[:, 2].isnan().all())
    assert federation["b"].train.inputs[:, 2].max() > 1  # "3,5" is a number here
    assert "has no bmi" in str(federation.notes) and "in common" not in str(federation.notes)
    result = mutua.run(mutua.methods.FedAvg(), federation, rounds=1)
    assert result.clients[0].accuracy() is not None
