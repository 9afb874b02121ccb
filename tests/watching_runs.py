"""Whether two runs gave the same, to the last byte; and which processes a run began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mutua import Result


def keys(result: Result) -> dict[str, Any]:
    """Everything that a run gives, but for its time, in comparable form."""
    arrays: dict[str, Any] = {f"global.{name}": a for name, a in (result.global_state or {}).items()}
    for client in result.clients:
        arrays |= {f"{client.id}.{g}.{n}": a for g, group in client.state.items() for n, a in group.items()}
    found = {name: (a.dtype, a.shape, a.numpy().tobytes()) for name, a in arrays.items()}
    return found | {"history": result.history.rows, "ledger": list(result.ledger)}


def descendants(pid: int) -> set[int]:
    """A process and all that it began."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found
