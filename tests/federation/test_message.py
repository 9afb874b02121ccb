"""Messages: as bytes, there and back to the bit; nothing else is let in, and nothing undeclared may leave."""

from __future__ import annotations

import json
import pickle
import struct
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from mutua import Kind, Message, Refused
from mutua.federation.message import NUMBERS, Part, count, may_leave, number, weights
from mutua.seeds import torch_stream
from mutua.support.tensor_files import Tensors

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def array(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    bits = torch.randint(0, 100, shape, generator=torch_stream(seed, "array"))
    return bits.to(dtype)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
arrays = st.builds(array, st.sampled_from(DTYPES), shapes, st.integers(0, 9))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)  # lone surrogates are no text
part_names = text.filter(lambda name: "/" not in name) | st.sampled_from(["self", "parts", "kind"])
parts = st.builds(Part, st.sampled_from(list(Kind)), st.dictionaries(text, arrays, min_size=1, max_size=5))
messages = st.dictionaries(part_names, parts, max_size=3).map(lambda parts: Message(**parts))


def content(message: Message) -> dict[str, Any]:
    """Everything a message says: part → kind and arrays to the bit."""
    return {
        name: (part.kind, {k: (a.dtype, a.shape, a.tolist()) for k, a in part.arrays.items()})
        for name, part in message.items()
    }


@given(messages)
def test_the_bytes_are_those_that_safetensors_writes(message: Message) -> None:
    named = {f"{p.kind}/{n}/{k}": a.clone() for n, p in message.items() for k, a in p.arrays.items()}
    assert message.encode() == save(named)


def test_arrays_that_share_memory_or_lie_otherwise_are_written_whole() -> None:
    whole = torch.arange(6.0, requires_grad=True).reshape(2, 3)
    message = Message(meme=weights({"a": whole, "tied": whole, "turned": whole.T, "row": whole[1]}))
    apart = {f"weights/meme/{k}": a.detach().contiguous().clone() for k, a in message.arrays("meme").items()}
    assert message.encode() == save(apart)


@given(messages)
def test_the_length_from_shapes_is_the_length_of_the_bytes(message: Message) -> None:
    assert message.nbytes == len(message.encode())


@given(messages)
def test_decoding_gives_back_all_that_was_encoded(message: Message) -> None:
    back = Message.decode(message.encode())
    assert content(back) == content(message)
    assert back == message


@given(messages, messages)
def test_messages_are_equal_when_all_they_say_is(one: Message, other: Message) -> None:
    assert (one == other) == (content(one) == content(other))


def test_part_sizes_by_hand() -> None:
    part = weights({"w": torch.zeros(3, 4), "b": torch.zeros(4, dtype=torch.float64), "n": torch.tensor(7)})
    assert part.kind is Kind.WEIGHTS
    assert part.values == 12 + 4 + 1
    assert part.nbytes == 12 * 4 + 4 * 8 + 8
    message = Message(meme=part, samples=count(31))
    assert message.nbytes - message.envelope == part.nbytes + 8
    assert message.number("samples") == 31
    assert message.arrays("meme")["w"].shape == (3, 4)


def test_the_bytes_are_safetensors_that_anybody_can_read() -> None:
    from safetensors.torch import load

    found = load(Message(meme=weights({"fc.weight": torch.arange(3.0)}), samples=count(5)).encode())
    assert found["weights/meme/fc.weight"].tolist() == [0.0, 1.0, 2.0]
    assert found["count/samples/"].item() == 5
    assert len(found) == 2


def test_the_bytes_do_not_depend_on_the_order_of_names_or_on_memory() -> None:
    w, b = torch.arange(6.0).view(2, 3), torch.ones(2)
    one = Message(meme=weights({"w": w, "b": b}), samples=count(2))
    other = Message(samples=count(2), meme=weights({"b": b, "w": w.t().contiguous().t()}))
    assert one.encode() == other.encode()


def test_tied_and_gradient_carrying_and_channels_last_arrays_encode() -> None:
    tied = torch.nn.Parameter(torch.randn(2, 3, 4, 4))
    message = Message(
        meme=weights({"a": tied, "b": tied, "c": tied.detach().to(memory_format=torch.channels_last)})
    )
    back = Message.decode(message.encode()).arrays("meme")
    assert message.nbytes == len(message.encode())
    assert all(torch.equal(back[name], tied) for name in "abc")


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    with pytest.raises(Refused, match="not a message"):
        Message.decode(data)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_message_is_read_or_refused(data: st.DataObject) -> None:
    good = Message(meme=weights({"w": torch.ones(3), "n": torch.tensor(2)}), samples=count(4)).encode()
    spot = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:spot] + data.draw(st.binary(max_size=3)) + good[spot + data.draw(st.integers(0, 3)) :]
    try:
        found = Message.decode(damaged)
    except Refused:
        return
    assert found.nbytes == len(found.encode())


def file(header: dict[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: str, nbytes: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]}


@pytest.mark.parametrize(
    ("header", "body", "why"),
    [
        ({"secret/meme/w": entry("F32", 4, [1])}, b"0000", "'secret/meme/w' has no known kind"),
        ({"weights": entry("F32", 4, [1])}, b"0000", "'weights' has no known kind"),
        ({"weights/meme": entry("F32", 4, [1])}, b"0000", "'weights/meme' has no known kind"),
        ({"WEIGHTS/meme/w": entry("F32", 4, [1])}, b"0000", "no known kind"),
        ({"weights/meme/w": entry("F8_E4M3", 4, [4])}, b"0000", "not a message"),
        ({"weights/meme/w": entry("C64", 8, [1])}, b"00000000", "not a message"),
        ({"weights/meme/w": entry("U64", 8, [1])}, b"00000000", "not a message"),
        ({"weights/meme/w": entry("F32", 8, [1])}, b"00000000", "not a message"),
        ({"weights/meme/w": entry("F32", 4, [2**62])}, b"0000", "not a message"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(header: dict[str, Any], body: bytes, why: str) -> None:
    with pytest.raises(Refused, match="not a message") as refused:
        Message.decode(file(header, body))
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_part_cannot_have_two_kinds() -> None:
    header = {"count/a/x": entry("U8", 1, [1]), "weights/a/y": entry("U8", 1, [1]) | {"data_offsets": [1, 2]}}
    with pytest.raises(Refused, match="'a' has two kinds"):
        Message.decode(file(header, b"01"))


def test_a_pickle_is_not_opened() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("a pickle was opened",)

    with pytest.raises(Refused):
        Message.decode(pickle.dumps(Bomb()))


@pytest.mark.parametrize("arrays", [{}, {"x": torch.tensor(1)}, {"": torch.tensor([1, 2])}, {"": torch.ones(1)}])
def test_what_is_not_one_number_is_not_read_as_one(arrays: dict[str, Tensor]) -> None:
    with pytest.raises(Refused, match="'samples'"):
        Message(samples=Part(Kind.COUNT, arrays)).number("samples")


def test_a_message_comes_back_with_the_names_it_was_sent_with() -> None:
    sent = Message(**{"my part": weights({"a/b.c": torch.ones(2)})})
    assert list(Message.decode(sent.encode()).arrays("my part")) == ["a/b.c"]
    with pytest.raises(ValueError, match="'my/part'"):
        Message(**{"my/part": weights({})})


# What may leave


MEME = weights({"body.weight": torch.zeros(2, 3), "body.bias": torch.zeros(2)})
BRIEF = Message(**{"global": MEME})
NORMED = {
    "body.weight": torch.zeros(2, 3),
    "norm.num_batches_tracked": torch.tensor(3),
    "norm.mask": torch.tensor([True, False]),
}


def test_what_is_declared_may_leave() -> None:
    shares = {"meme": Kind.WEIGHTS, "samples": Kind.COUNT}
    may_leave(None, {}, None)
    may_leave(None, shares, BRIEF)
    may_leave(Message(meme=MEME, samples=count(3)), shares, BRIEF)
    may_leave(Message(meme=MEME), shares, BRIEF)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (Message(meme=MEME, samples=count(3)), "count 'samples'"),
        (Message(personal=MEME), "weights 'personal'"),
        (Message(meme=Part(Kind.METRIC, {"": torch.tensor(1.0)})), "metric 'meme'"),
        (Message(meme=MEME, personal=MEME), "weights 'personal'"),
        (Message(meme=weights({**MEME.arrays, "head.weight": torch.zeros(3)})), "'head.weight'"),
        (Message(meme=weights({"": torch.zeros(3)})), "weights ''"),
        (Message(meme=weights({"body.weight": torch.zeros(3, dtype=torch.complex64)})), "torch.complex64"),
    ],
)
def test_what_is_not_declared_is_refused_by_name(message: Message, named: str) -> None:
    with pytest.raises(Refused) as refused:
        may_leave(message, {"meme": Kind.WEIGHTS}, BRIEF)
    assert named in str(refused.value)


def test_without_a_brief_no_weights_may_leave() -> None:
    for brief in (None, Message(), Message(samples=count(1))):
        with pytest.raises(Refused, match=r"weights 'body\."):
            may_leave(Message(meme=MEME), {"meme": Kind.WEIGHTS}, brief)


def test_a_count_is_one_number_and_hides_no_label_counts() -> None:
    shares = {"samples": Kind.COUNT}
    for arrays in (
        {"": torch.tensor([5, 0, 2])},
        {"": torch.tensor(7), "labels": torch.tensor([5, 0, 2])},
        {"labels": torch.tensor(5)},
    ):
        with pytest.raises(Refused, match=r"'samples'"):
            may_leave(Message(samples=Part(Kind.COUNT, arrays)), shares, BRIEF)


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("norm.num_batches_tracked", torch.tensor(1000), "may not leave; whole numbers go back as they came"),
        ("norm.mask", torch.tensor([True, True]), "may not leave; whole numbers go back as they came"),
        ("norm.num_batches_tracked", torch.tensor(3.0), "are torch.float32 (), the global's torch.int64 ()"),
        ("norm.num_batches_tracked", torch.tensor(3, dtype=torch.int32), "are torch.int32 ()"),
        ("norm.num_batches_tracked", torch.arange(3), "are torch.int64 (3,), the global's torch.int64 ()"),
        ("body.weight", torch.zeros(2, 4), "are torch.float32 (2, 4), the global's torch.float32 (2, 3)"),
        ("body.weight", torch.zeros(2, 3).double(), "are torch.float64 (2, 3)"),
    ],
    ids=str,
)
def test_whole_numbers_go_back_as_they_came_and_nothing_changes_shape_or_type(
    name: str, array: torch.Tensor, said: str
) -> None:
    shares, brief = {"meme": Kind.WEIGHTS}, Message(**{"global": weights(NORMED)})
    may_leave(Message(meme=weights({**NORMED, "body.weight": torch.ones(2, 3)})), shares, brief)
    with pytest.raises(Refused) as refused:
        may_leave(Message(meme=weights({**NORMED, name: array})), shares, brief)
    assert f"weights '{name}' {said}" in str(refused.value)


@pytest.mark.parametrize(
    "found",
    [
        torch.tensor(3.0),
        torch.tensor(2.5),
        torch.tensor(3, dtype=torch.int32),
        torch.tensor(True),
        torch.tensor(-1),
        torch.tensor(2**60),
    ],
    ids=str,
)
def test_a_count_is_a_whole_number_of_its_type_and_range(found: torch.Tensor) -> None:
    with pytest.raises(Refused, match=r"^count 'samples' may not leave; it is not a whole number"):
        may_leave(Message(samples=Part(Kind.COUNT, {"": found})), {"samples": Kind.COUNT}, BRIEF)


@pytest.mark.parametrize("kind", [Kind.SCORES, Kind.PROBABILITIES, Kind.ENTROPY, Kind.ACCURACY, Kind.LOSS])
def test_what_is_real_numbers_is_not_whole_ones(kind: Kind) -> None:
    one = torch.tensor(1) if kind in NUMBERS else torch.ones(2, 3, dtype=torch.int64)
    may_leave(Message(said=Part(kind, {"": one.float()})), {"said": kind}, None)
    with pytest.raises(Refused, match=f"{kind} 'said' may not leave; it is whole numbers"):
        may_leave(Message(said=Part(kind, {"": one})), {"said": kind}, None)


def test_a_number_that_is_declared_is_one_number() -> None:
    for kind in NUMBERS:
        many = Message(part=Part(kind, {"": torch.arange(3.0)}))
        with pytest.raises(Refused, match=f"{kind} 'part' may not leave; it is not one number"):
            may_leave(many, {"part": kind}, None)


def test_a_choice_is_a_whole_number() -> None:
    shares = {"centre": Kind.CHOICE}
    may_leave(Message(centre=number(Kind.CHOICE, 2)), shares, None)
    for odd in (torch.tensor(1.0), torch.tensor(-1), torch.tensor(2, dtype=torch.int32)):
        with pytest.raises(Refused, match=r"^choice 'centre' may not leave; it is not a whole number"):
            may_leave(Message(centre=Part(Kind.CHOICE, {"": odd})), shares, None)


def test_a_part_is_declared_by_its_name_so_one_kind_may_have_several_parts() -> None:
    shares = {"body": Kind.WEIGHTS, "samples": Kind.COUNT, "drawn": Kind.COUNT}
    may_leave(Message(body=MEME, samples=count(3), drawn=count(1)), shares, BRIEF)
    with pytest.raises(
        Refused, match=r"^count 'steps' may not leave; .* weights 'body', count 'samples', count 'dr"
    ):
        may_leave(Message(steps=count(1)), shares, BRIEF)
    with pytest.raises(Refused, match=r"^loss 'samples' may not leave"):
        may_leave(Message(samples=number(Kind.LOSS, 0.5)), shares, BRIEF)


@pytest.mark.parametrize(
    ("kind", "right", "wrong", "why"),
    [
        (
            Kind.PROTOTYPES,
            {"ape": torch.zeros(4), "a/b": torch.ones(4)},
            [
                {"ape": torch.zeros(4), "bee": torch.zeros(5)},
                {"ape": torch.zeros(2, 2)},
                {"ape": torch.tensor(1.0)},
                {"ape": torch.arange(4)},
            ],
            "vector for each class|whole numbers",
        ),
        (
            Kind.CONTROL,
            {"body.bias": torch.ones(2)},
            [{"head.bias": torch.ones(2)}, {"body.bias": torch.ones(3)}, {"body.bias": torch.ones(2).double()}],
            "no such name|the global's",
        ),
        (
            Kind.FEATURES,
            {"": torch.zeros(5, 3, 2, 2)},
            [
                {"": torch.zeros(5)},
                {"": torch.zeros(2, 2), "y": torch.zeros(2, 2)},
                {"": torch.arange(4)[:, None]},
            ],
            "row for each sample|whole numbers",
        ),
        (
            Kind.LABELS,
            {"": torch.arange(5)},
            [
                {"": torch.zeros(5)},
                {"": torch.arange(4).view(2, 2)},
                {"y": torch.arange(5)},
                {"": -torch.arange(5)},
            ],
            "whole number .* for each sample",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Kind) else "",
)
def test_every_other_kind_has_a_form_of_its_own(
    kind: Kind, right: Tensors, wrong: list[Tensors], why: str
) -> None:
    may_leave(Message(part=Part(kind, right)), {"part": kind}, BRIEF)
    again = Message.decode(Message(part=Part(kind, right)).encode())
    may_leave(again, {"part": kind}, BRIEF)
    for arrays in wrong:
        with pytest.raises(Refused, match=f"^{kind} .*({why})"):
            may_leave(Message(part=Part(kind, arrays)), {"part": kind}, BRIEF)
