"""Named arrays, and how long they are as a safetensors file."""

from __future__ import annotations

import json
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
"""The types of arrays that we write, by safetensors' names."""
_RANK = {name: i for i, name in enumerate(["BOOL", "U8", "I8", "I16", "F16", "BF16", "I32", "F32", "F64", "I64"])}


@lru_cache(maxsize=1024)
def header_bytes(signature: tuple[tuple[str, str, tuple[int, ...], int], ...]) -> int:
    """Length of safetensors' header for arrays of these names, types and shapes."""
    header: dict[str, object] = {}
    offset = 0
    # The widest type first, then by name: the format's own order, which the offsets depend on.
    for name, dtype, shape, width in sorted(signature, key=lambda e: (-_RANK[e[1]], e[0])):
        end = offset + width * int(torch.Size(shape).numel())
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + -(-len(text) // 8) * 8
