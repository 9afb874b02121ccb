"""How objects with arrays cross to Ray's workers: their arrays apart, so that a node holds common ones once.

Ray keeps NumPy arrays in the node's object store and lets every process there read them without a copy.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mutua.support.tensor_files import ALIGNMENT

_LARGE = 1 << 16
"""Bytes. Larger arrays cross as they are; smaller ones are put together, because each object has its cost."""


class ArrayBundle(NamedTuple):
    """Arrays on their way: the large ones each, the small ones in one buffer, and what each of them is."""

    kinds: list[tuple[torch.dtype, tuple[int, ...], int]]
    """The type, the shape and, for a small array, where it begins in the buffer; -1 for a large one."""
    large: list[np.ndarray]
    small: np.ndarray

    @property
    def nbytes(self) -> int:
        """How many bytes of arrays there are."""
        return self.small.nbytes + sum(array.nbytes for array in self.large)


def flattened(thing: Any) -> tuple[bytes, list[Tensor]]:
    """An object as a pickle without its arrays, and the arrays. Code of the main script is included by value."""
    from ray import cloudpickle

    content, arrays = io.BytesIO(), list[Tensor]()

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]  # made here, because `import mutua` does without Ray
        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is Tensor and thing.device.type == "cpu" and thing.layout == torch.strided:
                arrays.append(thing)
                return _nth_array, (len(arrays) - 1,)
            return super().reducer_override(thing)

    Packer(content, protocol=5).dump(thing)
    return content.getvalue(), arrays


def unflattened(content: bytes, arrays: Sequence[Tensor]) -> Any:
    """The object again."""
    return _Unpacker(io.BytesIO(content), arrays).load()


def bundled(arrays: Sequence[Tensor]) -> ArrayBundle:
    """Arrays, ready for Ray."""
    kinds, large, small = list[tuple[torch.dtype, tuple[int, ...], int]](), list[np.ndarray](), list[np.ndarray]()
    end = 0
    for array in arrays:
        flat = _bytes_of(array)
        if flat.nbytes > _LARGE:
            kinds.append((array.dtype, tuple(array.shape), -1))
            large.append(flat)
        else:
            kinds.append((array.dtype, tuple(array.shape), end))
            small.append(flat)
            end += flat.nbytes + -flat.nbytes % ALIGNMENT
    buffer = np.zeros(end, np.uint8)
    starts = [start for _, _, start in kinds if start >= 0]
    for start, flat in zip(starts, small, strict=True):
        buffer[start : start + flat.nbytes] = flat
    return ArrayBundle(kinds, large, buffer)


def unbundled(bundle: ArrayBundle, *, copy: bool) -> list[Tensor]:
    """The arrays again. Without a copy they cannot be written to: a process that tries to is ended by the system.

    Every array begins at a multiple of `ALIGNMENT`, as torch's own do: sums have the same bytes.
    """
    small = _writable(bundle.small) if copy else _aligned(bundle.small)
    large, found = iter(bundle.large), list[Tensor]()
    for dtype, shape, start in bundle.kinds:
        if start < 0:
            flat = next(large)
            flat = _writable(flat) if copy else _aligned(flat)
        else:
            flat = small[start : start + dtype.itemsize * torch.Size(shape).numel()]
        # Without values there is nothing to view as another type: torch refuses some strides of such arrays.
        found.append(_tensor(flat).view(dtype).reshape(shape) if flat.nbytes else torch.empty(shape, dtype=dtype))
    return found


def _bytes_of(array: Tensor) -> np.ndarray:
    if not array.numel():
        return np.empty(0, np.uint8)
    flat: np.ndarray = array.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def _writable(flat: np.ndarray) -> np.ndarray:
    made: np.ndarray = torch.empty(flat.nbytes, dtype=torch.uint8).numpy()
    made[:] = flat
    return made


def _aligned(flat: np.ndarray) -> np.ndarray:
    return flat if flat.ctypes.data % ALIGNMENT == 0 else _writable(flat)


def _tensor(flat: np.ndarray) -> Tensor:
    if flat.flags.writeable:
        return torch.from_numpy(flat)
    # torch warns of arrays that cannot be written to. Nobody writes to a client's data.
    address = {"data": (flat.ctypes.data, False), "shape": flat.shape, "typestr": "|u1", "version": 3}
    return torch.from_numpy(np.asarray(_Lent(address, flat)))


class _Lent:
    """Memory of another array, under another description; it lives as long as this object."""

    def __init__(self, description: dict[str, Any], owner: np.ndarray) -> None:
        self.__array_interface__ = description
        self.owner = owner


class _Unpacker(pickle.Unpickler):
    def __init__(self, content: io.BytesIO, arrays: Sequence[Tensor]) -> None:
        super().__init__(content)
        self.take = arrays.__getitem__

    def find_class(self, module: str, name: str) -> Any:
        return self.take if name == _nth_array.__name__ else super().find_class(module, name)


def _nth_array(number: int) -> Tensor:
    raise AssertionError("only an unpacker knows its arrays")
