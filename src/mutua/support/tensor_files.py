"""Named arrays, and how they are written as a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

import torch
from torch import Tensor

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

ArrayLayout = tuple[tuple[str, str, tuple[int, ...], int], ...]
"""What arrays are: the name, type, shape and bytes per value of each."""
Pieces = list[bytes | memoryview]
"""A file's bytes in order. Arrays are not copied: a run's state may be large, and is saved often."""


@lru_cache(maxsize=1024)
def header_bytes(layout: ArrayLayout) -> int:
    """How long the header of a safetensors file with these arrays is."""
    return len(_header(_in_file_order(layout)))


def encode_tensors(arrays: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Pieces:
    """A safetensors file: the header, then the arrays."""
    layout = _in_file_order(
        tuple((name, FILE_DTYPES[a.dtype], tuple(a.shape), a.element_size()) for name, a in arrays.items())
    )
    held = (arrays[name].detach().cpu().contiguous() for name, *_ in layout)
    return [_header(layout, metadata), *(a.reshape(-1).view(torch.uint8).numpy().data for a in held)]


def _in_file_order(layout: ArrayLayout) -> ArrayLayout:
    return tuple(sorted(layout, key=lambda entry: (_ORDER.index(entry[1]), entry[0])))


def _header(layout: ArrayLayout, metadata: Mapping[str, str] | None = None) -> bytes:
    """The header's length and the header, which says where each array is."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, width in layout:
        end = offset + width * torch.Size(shape).numel()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
