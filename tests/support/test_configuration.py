"""Complaints about a recipe: the field as the recipe spells it, the value, and the way out, in one line."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from mutua import SGD, Plan
from mutua.data.partitions import IID, Dirichlet, Shards
from mutua.methods import Schedule
from mutua.support.configuration import Spec, explain


class Part(Spec):
    size: int = Field(1, ge=1, le=9)
    flag: bool = False


class Whole(Spec):
    word: Literal["red", "green"] = "red"
    share: float = Field(0.5, gt=0, lt=1)
    name: str = Field("a", pattern="^[a-z]+$", max_length=3)
    part: Part = Field(default_factory=Part)
    parts: list[Part] = Field(default_factory=list, min_length=0, max_length=2)
    kind: Annotated[IID | Shards | Dirichlet, Field(discriminator="kind")] | None = None
    rate: Schedule = 0.1
    other_name: int = Field(0, alias="global")


def complaint(model: type[BaseModel], at: str = "", **given: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(given)
    return explain(caught.value, model, at)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"word": "gren"}, "word: 'gren'; did you mean 'green'? known: red, green"),
        ({"share": 0}, "share: 0; it must be above 0.0"),
        ({"share": 1}, "share: 1; it must be below 1.0"),
        ({"share": "half"}, "share: 'half'; it must be a number"),
        ({"share": None}, "share: nothing; it must be a number"),
        (
            {"name": "A!"},
            "name: 'A!'; it must be letters, digits, '.', '_', '+' or '-', with a letter or digit first",
        ),
        ({"name": "abcd"}, "name: 'abcd'; it must be at most 3 characters long"),
        ({"name": 3}, "name: 3; it must be text"),
        ({"part": {"size": 0}}, "part.size: 0; it must be at least 1"),
        ({"part": {"size": 10}}, "part.size: 10; it must be at most 9"),
        ({"part": {"size": 1.5}}, "part.size: 1.5; it must be a whole number"),
        ({"part": {"size": "two"}}, "part.size: 'two'; it must be a whole number"),
        ({"part": {"flag": "maybe"}}, "part.flag: 'maybe'; it must be true or false"),
        ({"part": {"sise": 2}}, "part.sise: unknown key; did you mean 'size'? known: size, flag"),
        ({"part": 3}, "part: 3; it must be keys and values, such as {key: value}"),
        ({"parts": 3}, "parts: 3; it must be a list, such as [a, b]"),
        ({"parts": [{}, {}, {}]}, "parts: [{}, {}, {}]; it must be a list of at most 2"),
        ({"parts": [{}, {"size": 0}]}, "parts.1.size: 0; it must be at least 1"),
        (
            {"kind": {"kind": "sharts"}},
            "kind.kind: 'sharts'; did you mean 'shards'? known: iid, shards, dirichlet",
        ),
        ({"kind": {"clients": 2}}, "kind.kind: missing; known: iid, shards, dirichlet"),
        ({"kind": {"kind": "shards", "clients": 2}}, "kind.shards_per_client: missing; it must be given"),
        ({"kind": {"kind": "iid", "clients": 0}}, "kind.clients: 0; it must be at least 1"),
        (
            {"kind": {"kind": "iid", "clients": 2, "alpha": 1}},
            "kind.alpha: unknown key; known: seed, shift, clients, kind",
        ),
        ({"kind": "iid"}, "kind: 'iid'; it must be keys and values, such as {key: value}"),
        ({"rate": {"schedule": "linear", "start": 1}}, "rate.end: missing; it must be given"),
        (
            {"rate": {"schedule": "lineer"}},
            "rate: schedule: 'lineer' is unknown; did you mean 'linear'? known: linear, cosine, list",
        ),
        ({"global": "x"}, "global: 'x'; it must be a whole number"),
        (
            {"globl": 1},
            "globl: unknown key; did you mean 'global'? known: word, share, name, part, parts, kind, rate, global",
        ),
    ],
)
def test_each_complaint_names_the_field_the_value_and_the_way_out(given: dict[str, Any], said: str) -> None:
    assert complaint(Whole, **given) == said


def test_where_it_stands_comes_first() -> None:
    assert complaint(SGD, "optimizer", momentum=2) == "optimizer.momentum: 2; it must be below 1.0"


def test_a_rule_over_several_fields_has_no_field() -> None:
    assert complaint(Plan, epochs=1, steps=1).startswith("epochs and steps are both given;")


def test_several_complaints_are_one_line_without_repeats() -> None:
    said = complaint(Whole, word="blue", part={"size": 0})
    assert said == "word: 'blue'; known: red, green; part.size: 0; it must be at least 1"


def test_a_long_value_is_shortened() -> None:
    assert len(complaint(Whole, word="x" * 10_000)) < 100


def test_a_complaint_that_has_no_words_of_ours_keeps_pydantics() -> None:
    class Odd(BaseModel):
        at: complex

    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Odd).validate_python({"at": "x"})
    said = explain(caught.value, Odd)
    assert said.startswith("at: 'x'; it must be a valid") and "complex" in said
