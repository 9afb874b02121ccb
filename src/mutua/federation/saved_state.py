"""Saved states: groups of named arrays, and perhaps a reply, as one safetensors file. Reading one runs no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mutua.errors import MutuaError, RunError
from mutua.federation.message import Kind, Message, Part
from mutua.federation.store import State
from mutua.support import safe_reading
from mutua.support.tensor_files import FILE_DTYPES, Pieces, Tensors, encode_tensors, without_fillers


class DamagedState(MutuaError):
    """A saved state is damaged; the text says how."""


def encode_state(state: State, reply: Message | None = None, **about: Any) -> Pieces:
    """Groups of named arrays as `GROUP/NAME`, and a reply as `/PART/NAME`, in one safetensors file.

    Names and their order are also in the file's metadata, beside `about`: groups may be empty, and order counts.
    """
    arrays: Tensors = {}
    for group, named in state.items():
        if not _valid_group(group):
            raise RunError(f"'{group}' cannot be saved: a group's name has no '/' and is not empty")
        arrays |= {f"{group}/{name}": array for name, array in named.items()}
    parts = None
    if reply is not None:
        arrays |= {f"/{part}/{name}": array for part in reply for name, array in reply.arrays(part).items()}
        parts = {name: {"kind": part.kind, "arrays": list(part.arrays)} for name, part in reply.items()}
    groups = {group: list(named) for group, named in state.items()}
    for name, array in arrays.items():
        if array.dtype not in FILE_DTYPES:
            raise RunError(f"'{name}' cannot be saved: safetensors has no {array.dtype}")
    told = json.dumps({"format": 1, **about, "groups": groups, "reply": parts})
    header, *data = encode_tensors(arrays, {"mutua": told}, aligned=True)
    names, size = len(header) - 8, sum(map(len, data))
    if size + len(header) > safe_reading.MAX_ARRAY_BYTES or names > safe_reading.MAX_HEADER_BYTES:
        raise RunError(f"a state of {size} bytes and {names} of names cannot be saved: it is too large")
    return [header, *data]


def decode_state(data: bytes | Path) -> tuple[State, Message | None, dict[str, Any]]:
    """The state, the reply and what is said about them; `DamagedState` if it cannot be read.

    The arrays of a file, given by its path, are read when they are first used.
    """
    try:
        if isinstance(data, Path):
            arrays, metadata = safe_reading.map_arrays(data)
        else:
            arrays, metadata = safe_reading.parse_arrays(data)
        arrays = without_fillers(arrays)
        about = safe_reading.from_json(metadata["mutua"])
        state = {
            group: {name: arrays.pop(f"{group}/{name}") for name in names}
            for group, names in about.pop("groups").items()
        }
        parts = about.pop("reply")
        reply = None if parts is None else Message(**{n: _part(n, part, arrays) for n, part in parts.items()})
    except safe_reading.Unreadable as error:
        raise DamagedState(str(error)) from None
    except Exception as error:  # whatever names from a stranger make these raise
        raise DamagedState(f"it cannot be read ({type(error).__name__})") from None
    if arrays or about.get("format") != 1 or not all(map(_valid_group, state)):
        raise DamagedState("it holds what this mutua does not know")
    return state, reply, about


def _valid_group(group: str) -> bool:
    return bool(group) and "/" not in group


def _part(name: str, told: Mapping[str, Any], arrays: Tensors) -> Part:
    return Part(Kind(told["kind"]), {key: arrays.pop(f"/{name}/{key}") for key in told["arrays"]})


def terms_as_text(terms: Mapping[str, float]) -> dict[str, str]:
    """Numbers as text: JSON has no NaN."""
    return {name: repr(float(value)) for name, value in terms.items()}


def terms_of(terms: Mapping[str, Any]) -> dict[str, float]:
    """The numbers again."""
    try:
        return {name: float(value) for name, value in terms.items()}
    except (TypeError, ValueError, OverflowError):
        raise DamagedState("its terms are no numbers") from None
