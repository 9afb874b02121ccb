"""Named arrays, and how they are written as a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

from mutua.errors import RunError

Tensors = dict[str, Tensor]

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The types of arrays in messages, by safetensors' names."""
FILE_DTYPES = DTYPES | {
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""The types of arrays in files."""
_ORDER = [
    "U64",
    "I64",
    "F64",
    "C64",
    "F32",
    "U32",
    "I32",
    "BF16",
    "F16",
    "U16",
    "I16",
    "F8_E4M3",
    "F8_E5M2",
    "I8",
    "U8",
    "BOOL",
]
"""The order of types in a file, the widest first; within a type, arrays are ordered by name."""

ALIGNMENT = 64
"""A cache line, in bytes: vectorised sums over arrays that begin elsewhere may round differently."""
_FILLER = ".filler"

ArrayLayout = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""What arrays are: the name, type, shape and bytes per value of each."""
Pieces = list[bytes | memoryview]
"""A file's bytes in order. Arrays are not copied: a run's state may be large, and is saved often."""


@lru_cache(maxsize=1024)
def header_bytes(layout: ArrayLayout) -> int:
    """How long the header of a safetensors file with these arrays is."""
    return len(_header(_in_file_order(layout)))


def encode_tensors(
    arrays: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, *, aligned: bool = False
) -> Pieces:
    """A safetensors file, the same bytes as the library's: the header, then the arrays, which may share memory.

    If `aligned`, there are fillers too, which `without_fillers` removes: the arrays of such a file can be mapped
    and give the very sums that they give in memory.
    """
    for name, array in arrays.items():
        if array.dtype not in FILE_DTYPES:
            raise RunError(f"'{name}' cannot be saved: safetensors has no {array.dtype}")
    layout = _in_file_order(
        tuple((name, FILE_DTYPES[a.dtype], tuple(a.shape), a.element_size()) for name, a in arrays.items())
    )
    filled = _with_fillers(layout) if aligned else layout
    held = {name: arrays[name].detach().cpu().contiguous() for name, *_ in layout}
    pieces: Pieces = [_header(filled, metadata, ALIGNMENT if aligned else 8)]
    for name, _, shape, _ in filled:
        if name in held:
            pieces.append(held[name].reshape(-1).view(torch.uint8).numpy().data)
        else:
            pieces.append(bytes(shape[0]))
    return pieces


def without_fillers(arrays: Tensors) -> Tensors:
    """The arrays of a file without its fillers, each where a sum over it has the same bytes as anywhere else."""
    held = {name: array for name, array in arrays.items() if not name.startswith(_FILLER)}
    return {name: a if a.data_ptr() % ALIGNMENT == 0 else a.clone() for name, a in held.items()}


def _with_fillers(layout: ArrayLayout) -> ArrayLayout:
    """A few bytes after each array, so that the next one begins at a multiple of `ALIGNMENT`."""
    found: list[tuple[str, str, tuple[int, ...], int]] = []
    for i, entry in enumerate(layout):
        found.append(entry)
        if rest := entry[3] * torch.Size(entry[2]).numel() % ALIGNMENT:
            found.append((f"{_FILLER}{i}", "U8", (ALIGNMENT - rest,), 1))
    return tuple(found)


def _in_file_order(layout: ArrayLayout) -> ArrayLayout:
    return tuple(sorted(layout, key=lambda entry: (_ORDER.index(entry[1]), entry[0])))


def _header(layout: ArrayLayout, metadata: Mapping[str, str] | None = None, multiple: int = 8) -> bytes:
    """The header's length and the header, which says where each array is."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, width in layout:
        end = offset + width * torch.Size(shape).numel()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % multiple)
    return len(text).to_bytes(8, "little") + text
