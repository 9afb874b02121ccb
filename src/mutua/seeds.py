"""Random streams that depend on what they are for, and on nothing else.

A stream is named by a root and a path, such as (seed, client id, round, "batches"). No two purposes share a
stream, so the order in which clients work, their number, the engine and the number of workers
cannot change a draw. What must stay secret is drawn from the system instead and cannot be repeated.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import torch
from torch import Tensor

Path = str | int


def derive(root: int, *path: Path) -> int:
    """A 63-bit seed for the stream of this name."""
    text = repr((root, *path)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def numpy_stream(root: int, *path: Path) -> np.random.Generator:
    """The NumPy generator of this name."""
    return np.random.default_rng(derive(root, *path))


def torch_stream(root: int, *path: Path) -> torch.Generator:
    """The torch generator (on the CPU) of this name."""
    return torch.Generator().manual_seed(derive(root, *path))


def public(seed: int) -> int:
    """The root known to all: the global's initialisation, client sampling, public draws."""
    return derive(seed, "public")


def private(seed: int, client_id: str) -> int:
    """A client's own root in a simulation: batch order, dropout, personal initialisation."""
    return derive(seed, "client", client_id)


def normals(size: int, stream: torch.Generator | None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers from this stream; None is the system's random source."""
    if stream is not None:
        return torch.randn(size, generator=stream, dtype=dtype)
    # Box and Muller 1958: two uniform numbers make two normal ones. 1 − u is in (0, 1] and has a logarithm.
    radius, angle = uniforms(size + size % 2, None).view(2, -1)
    radius, angle = (-2 * torch.log1p(-radius)).sqrt(), 2 * torch.pi * angle
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:size].to(dtype)


def uniforms(size: int, stream: torch.Generator | None) -> Tensor:
    """Uniform numbers in [0, 1) from this stream; None is the system's random source."""
    if stream is not None:
        return torch.rand(size, generator=stream)
    bits = np.frombuffer(os.urandom(8 * size), np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits * 2.0**-53)
