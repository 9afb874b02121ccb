"""Reading files that anybody may have written: no code is run, the limits here hold, and there is one error.

Text is JSON or YAML, arrays are safetensors or a torch `state_dict`.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import pickletools
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, BinaryIO, NoReturn

import torch
import yaml
from torch import Tensor

from mutua.errors import InputError
from mutua.support.tensor_files import FILE_DTYPES

MAX_ARRAY_BYTES = 16 * 2**30
"""The longest array file or message. Reading one takes about twice its length of memory."""
MAX_HEADER_BYTES = 4 * 2**20
"""The longest header of an array file, which is read first. In memory it takes up to 64 times its length."""
MAX_TEXT_BYTES = 16 * 2**20
"""The longest JSON file. Reading one takes up to 32 times its length."""
MAX_YAML_CHARACTERS = 2**20
"""The longest YAML text."""
MAX_YAML_VALUES = 100_000
"""The most keys and values in YAML text, where an alias counts for all that it stands for."""
MAX_DEPTH = 64
"""The deepest nesting of JSON and YAML."""
MAX_DIGITS = 100
"""The longest number in YAML, in characters."""


MAX_EXPANSION = 100
"""How many times its length a compressed data file may take, beyond `ALWAYS_ALLOWED_BYTES`."""
ALWAYS_ALLOWED_BYTES = 2**30
"""What a compressed data file may take in any case."""
MEMORY_VARIABLE = "MUTUA_MAX_DATA"
"""The environment variable that limits the memory that data may take, in GiB. Default: what the machine has."""


_TYPES = {name: dtype for dtype, name in FILE_DTYPES.items()}


class Unreadable(ValueError):
    """A file cannot be read; the text says why."""


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. A pipe or a device is refused: reading it might never end."""
    if not path.is_dir():
        _only_file(path.stat().st_mode)
    # Without waiting, in case a pipe was put there just now.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        file = os.fdopen(number, "rb")
    except OSError:  # a folder
        os.close(number)
        raise
    try:
        _only_file(os.fstat(number).st_mode)
    except Unreadable:
        file.close()
        raise
    return file


def _only_file(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise Unreadable("it is a pipe or a device, not a file")


def check_memory(takes: int, packed: int | None = None) -> None:
    """Refuse data before it is unpacked if it takes too much memory, or far more than its file, `packed` bytes."""
    gib = f"it takes {takes / 2**30:.1f} GiB of memory"
    given = os.environ.get(MEMORY_VARIABLE)
    if given is not None:
        if not re.fullmatch(r"\d+(\.\d+)?", given):
            raise InputError(f"{MEMORY_VARIABLE}: '{given}'; give a number of GiB")
        if takes > float(given) * 2**30:
            raise Unreadable(f"{gib}; {MEMORY_VARIABLE} allows {given}")
        return
    if takes > _memory():
        raise Unreadable(
            f"{gib}; this machine has {_memory() / 2**30:.1f}. To read it all the same set {MEMORY_VARIABLE}"
        )
    if packed is not None and takes > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * packed):
        raise Unreadable(
            f"{gib}, {takes // max(packed, 1)} times its length. To read it all the same set {MEMORY_VARIABLE}"
        )


def _memory() -> int:
    """The memory of this machine, or what a container may use of it."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return whole


def read_text(path: Path, limit: int = MAX_TEXT_BYTES) -> str:
    """The text of a UTF-8 file that is not longer than the limit."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError:
        raise Unreadable("it is not a text file") from None


def read_bytes(path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """The bytes of a file that is not longer than the limit."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise Unreadable(f"it has more than {limit} bytes")
    return data


# JSON


def from_json(data: str | bytes) -> Any:
    """Read strict JSON: no key twice, no number that is not finite, no half of a surrogate pair."""
    try:
        text = data if isinstance(data, str) else data.decode()
        found = json.loads(text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)
        _check_depth(found, MAX_DEPTH)
        if _HALF.search(text):
            json.dumps(found, ensure_ascii=False).encode()  # this fails if the other half is missing
    except RecursionError:
        raise Unreadable(f"it is nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:
        raise error if isinstance(error, Unreadable) else Unreadable(f"it is not JSON: {error}") from None
    return found


_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Unreadable(f"it has {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} twice")
    return found


def _finite(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise Unreadable(f"it holds {digits[:MAX_DIGITS]}, which is no number")
    return float(digits)


def _check_depth(tree: Any, room: int) -> None:
    if isinstance(tree, dict | list):
        if not room:
            raise RecursionError
        for inner in tree.values() if isinstance(tree, dict) else tree:
            if inner:
                _check_depth(inner, room - 1)


# YAML


def from_yaml(data: str) -> Any:
    """Read YAML of text, numbers, true, false, null, lists and mappings; no tags, no key twice, few aliases."""
    if len(data) > MAX_YAML_CHARACTERS:
        raise Unreadable(f"it has more than {MAX_YAML_CHARACTERS} characters")
    try:
        return yaml.load(data, _Loader)
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark
        raise Unreadable(
            f"line {at.line + 1}, column {at.column + 1}: {error.problem}" if at else str(error)
        ) from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unreadable(" ".join(str(error).split())) from None


class _Loader(yaml.SafeLoader):
    """YAML's safe loader with limits: on its own it follows aliases, tags and nesting without end."""

    def __init__(self, data: str) -> None:
        super().__init__(data)
        self._nodes, self._depth = 0, 0
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event, before = self.peek_event(), self._nodes  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None):
            self._refuse(event, f"a tag, '{event.tag}'; leave it out")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        assert node is not None
        if isinstance(event, yaml.AliasEvent):
            if node not in self._sizes:
                self._refuse(event, f"'*{event.anchor}' within what it names")
            self._nodes += self._sizes[node]
        else:
            self._nodes += 1
            self._sizes[node] = self._nodes - before
        if self._nodes > MAX_YAML_VALUES:
            self._refuse(event, f"more than {MAX_YAML_VALUES} values, each alias counted for what it stands for")
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            self._refuse(node, f"a number of more than {MAX_DIGITS} characters")
        node.value.encode()  # this fails on half of a surrogate pair
        if "\0" in node.value:
            self._refuse(node, "a character 0")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if key.tag not in _KEYS:
                self._refuse(key, "a key that is not text; put it in quotes")
            if key.value in seen:
                self._refuse(key, f"'{key.value}' is given twice")
            seen.add(key.value)
        return node

    def _refuse(self, at: Any, problem: str) -> NoReturn:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)


_NUMBERS = {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float")}
_KEYS = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "merge")}
_READ = {"bool", "float", "int", "merge", "null"}
# Dates stay text: recipes have no dates.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag.rpartition(":")[2] in _READ]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


# Arrays


def parse_arrays(data: bytes) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The arrays and the metadata of a safetensors file's bytes."""
    from safetensors.torch import load

    if len(data) > MAX_ARRAY_BYTES:
        raise Unreadable(f"it has more than {MAX_ARRAY_BYTES} bytes")
    size = _names(data[:8])
    header = from_json(data[8 : 8 + size])
    if not isinstance(header, dict):
        raise Unreadable("it does not begin with the names of its arrays")
    try:
        found = load(data)
    except Exception as error:  # the library raises many kinds; all mean that the file cannot be read
        raise Unreadable(str(error).partition("\n")[0]) from None
    return _sound(found), header.get("__metadata__") or {}


def map_arrays(path: Path) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """The arrays and the metadata of a safetensors file; the arrays are read when they are first used.

    They stay valid if the file is replaced or removed, as atomic files are, and a change to one does not reach it.
    Not by safetensors' own `load_file`: version 0.8 loses two Python objects for every array it maps.
    """
    try:
        with open_file(path) as file:
            size = _names(file.read(8))
            header = from_json(file.read(size))
            if not isinstance(header, dict):
                raise Unreadable("it does not begin with the names of its arrays")
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        metadata = header.pop("__metadata__", None) or {}
        return _sound({name: _mapped(memory, 8 + size, **about) for name, about in header.items()}), metadata
    except Exception as error:  # whatever names from a stranger make these raise
        raise Unreadable(str(error).partition("\n")[0] or type(error).__name__) from None


def _mapped(memory: mmap.mmap, first: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    kind, (start, end) = _TYPES[dtype], data_offsets
    count = torch.Size(shape).numel()
    if not 0 <= start <= end <= len(memory) - first or end - start != count * kind.itemsize:
        raise Unreadable("an array is not where its header says")
    if not count:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=count, offset=first + start).view(shape)


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The named arrays of a safetensors file or, for any other ending, of a torch state_dict file."""
    try:
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_ARRAY_BYTES:
                raise Unreadable(f"it has more than {MAX_ARRAY_BYTES} bytes")
            if path.suffix != ".safetensors":
                return _sound(_state_dict(file))
            from_json(file.read(_names(file.read(8))))
        from safetensors.torch import load_file

        return _sound(load_file(path))
    except UnpicklingError:  # its text would advise to read the file unsafely
        raise Unreadable("it is not a state_dict; save model.state_dict() in it") from None
    except Exception as error:  # every reader has its own errors; all mean that the file cannot be read
        raise Unreadable(str(error).partition("\n")[0] or type(error).__name__) from None


def _names(first: bytes) -> int:
    size = int.from_bytes(first, "little")
    if size > MAX_HEADER_BYTES:
        raise Unreadable(f"its names take {size} bytes; the most is {MAX_HEADER_BYTES}")
    return size


def _sound(found: Any) -> dict[str, Tensor]:
    """Refuse anything but named arrays of numbers that are in memory."""
    if not isinstance(found, dict) or not all(isinstance(array, Tensor) for array in found.values()):
        raise Unreadable("it is not a state_dict; save model.state_dict() in it")
    for name, array in found.items():
        if not isinstance(name, str) or array.is_meta or array.nbytes > array.untyped_storage().nbytes():
            raise Unreadable(f"it has not all numbers of '{name}'")
        if array.dim() > MAX_DEPTH:
            raise Unreadable(f"'{name}' has more than {MAX_DEPTH} dimensions")
        if array.dtype == torch.bool and bool((array.view(torch.uint8) > 1).any()):
            raise Unreadable(f"'{name}' holds what is neither true nor false")
    return found


# All that torch.save writes for a state_dict. Anything else could make torch.load take any amount of memory.
_PLAIN = re.compile(
    r"collections OrderedDict|torch(\.storage)? \w+Storage|torch [a-z]+\d\w*"
    r"|torch\._utils _rebuild_(tensor_v2|tensor_v3|parameter)"
)


def _state_dict(file: IO[bytes]) -> Any:
    """Read what torch.save wrote; it is refused unread if it is compressed or holds more than named arrays."""
    plain = io.BytesIO()
    with zipfile.ZipFile(file) as held, zipfile.ZipFile(plain, "w") as copy:
        if sum(entry.file_size for entry in held.infolist()) > os.fstat(file.fileno()).st_size:
            raise Unreadable("it is packed; save it with torch.save")
        for entry in held.infolist():
            if entry.filename.endswith(".pkl"):
                _check_pickle(held.read(entry))
            # Copied, so that torch reads the entries that were checked and no others.
            copy.writestr(entry.filename, held.read(entry))
    plain.seek(0)
    return torch.load(plain, map_location="cpu", weights_only=True)


def _check_pickle(data: bytes) -> None:
    if len(data) > MAX_HEADER_BYTES:
        raise Unreadable(f"its names take {len(data)} bytes; the most is {MAX_HEADER_BYTES}")
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "GLOBAL" and not _PLAIN.fullmatch(str(argument)):
            raise Unreadable(f"it holds {argument}, which is no array; save model.state_dict() in it")
