"""Topologies: who hears whom in a round of a peer-to-peer method."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mutua.errors import InputError
from mutua.seeds import numpy_stream, public
from mutua.support import safe_reading
from mutua.support.configuration import local_path

TOPOLOGIES = ("all", "pairs", "ring")


@dataclass(frozen=True)
class Topology:
    """`all`, random disjoint `pairs` each round, a `ring` in id order, or a graph: a file or a networkx graph."""

    of: Any = "all"

    def peers(self, client: str, clients: Sequence[str], seed: int, round: int) -> list[str]:
        """Whom this client hears in this round, in id order."""
        ids = sorted(clients)
        others = [i for i in ids if i != client]
        if self.of == "all":
            return others
        if self.of == "ring":
            at = ids.index(client)
            return sorted({ids[at - 1], ids[(at + 1) % len(ids)]} - {client})
        if self.of == "pairs":
            order = numpy_stream(public(seed), round, "pairs").permutation(ids).tolist()
            pairs = zip(order[::2], order[1::2], strict=False)
            return [b if a == client else a for a, b in pairs if client in (a, b)]
        graph = self.graph
        heard = graph.predecessors(client) if graph.is_directed() else graph.neighbors(client)
        return sorted(set(heard) - {client})

    @cached_property
    def graph(self) -> Any:
        """The networkx graph, its nodes as text. In a directed graph, an edge points from speaker to listener."""
        import networkx

        graph = _read(local_path(self.of, "topology")) if isinstance(self.of, str | Path) else self.of
        return networkx.relabel_nodes(graph, str)

    def check(self, clients: Sequence[str]) -> None:
        """Refuse a graph that leaves out a client or names a stranger."""
        if self.of in TOPOLOGIES:
            return
        nodes = set(self.graph.nodes)
        missing, strange = sorted(set(clients) - nodes), sorted(nodes - set(clients))
        if missing or strange:
            who = f"has no node '{missing[0]}'" if missing else f"names '{strange[0]}', which is no client"
            raise InputError(f"topology: the graph {who}; its nodes must be the clients' ids")


def _read(path: Path) -> Any:
    """A graph from a file: one edge per line, or GraphML or GML by its ending."""
    import networkx

    if not path.is_file():
        raise InputError(f"topology: '{path}' is neither {', '.join(TOPOLOGIES)} nor a file")
    readers = {".graphml": networkx.read_graphml, ".gml": networkx.read_gml}
    try:
        return readers.get(path.suffix, networkx.read_edgelist)(io.BytesIO(safe_reading.read_bytes(path)))
    except Exception as error:  # each reader has errors of its own
        raise InputError(f"topology: {path} cannot be read as a graph ({error})") from None
