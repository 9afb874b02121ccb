"""Who hears whom: all, pairs, ring and graphs from files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mutua import InputError, Plan
from mutua.federation.topology import Topology

IDS = ["d", "a", "c", "b", "e"]


def heard(of: Any, clients: list[str], seed: int = 0, round: int = 1) -> dict[str, list[str]]:
    topology = Topology(of)
    return {client: topology.peers(client, clients, seed, round) for client in sorted(clients)}


def test_all_is_everybody_else_in_id_order() -> None:
    assert heard("all", IDS) == {i: [j for j in "abcde" if j != i] for i in "abcde"}
    assert Topology() == Topology("all")
    assert heard("all", ["a"]) == {"a": []}


def test_a_ring_is_the_two_neighbours_by_id() -> None:
    assert heard("ring", IDS) == {
        "a": ["b", "e"],
        "b": ["a", "c"],
        "c": ["b", "d"],
        "d": ["c", "e"],
        "e": ["a", "d"],
    }
    assert heard("ring", ["b", "a"]) == {"a": ["b"], "b": ["a"]}
    assert heard("ring", ["a"]) == {"a": []}


@settings(max_examples=50, deadline=None)
@given(number=st.integers(1, 9), seed=st.integers(0, 1000), round=st.integers(1, 1000))
def test_pairs_are_disjoint_and_mutual_and_leave_at_most_one_alone(number: int, seed: int, round: int) -> None:
    pairs = heard("pairs", [f"client-{i}" for i in range(number)], seed, round)
    assert sum(not peers for peers in pairs.values()) == number % 2
    for client, peers in pairs.items():
        assert len(peers) <= 1
        for peer in peers:
            assert peer != client
            assert pairs[peer] == [client]


def test_pairs_differ_from_round_to_round_and_all_pairs_come() -> None:
    clients = ["a", "b", "c", "d"]
    rounds = [heard("pairs", clients, round=round) for round in range(1, 61)]
    seen = {(client, peer) for pairs in rounds for client, (peer,) in pairs.items()}
    assert seen == {(i, j) for i in clients for j in clients if i != j}
    assert any(one != other for one, other in pairwise(rounds))
    # Three ways to pair four clients: each about 20 times in 60 rounds.
    counts = [sum(pairs["a"] == [peer] for pairs in rounds) for peer in "bcd"]
    assert min(counts) > 8
    assert rounds == [heard("pairs", clients, round=round) for round in range(1, 61)]
    assert rounds != [heard("pairs", clients, seed=1, round=round) for round in range(1, 61)]
    assert rounds[0] == heard("pairs", clients[::-1])


EDGES = [("a", "b"), ("b", "c"), ("c", "d"), ("b", "d")]
HEARD = {"a": ["b"], "b": ["a", "c", "d"], "c": ["b", "d"], "d": ["b", "c"]}


def written(folder: Path, ending: str) -> Path:
    path = folder / f"graph{ending}"
    graph = networkx.Graph(EDGES)
    {".graphml": networkx.write_graphml, ".gml": networkx.write_gml, ".txt": networkx.write_edgelist}[ending](
        graph, path
    )
    return path


@pytest.mark.parametrize("ending", [".txt", ".graphml", ".gml"])
def test_a_graph_from_a_file(ending: str, tmp_path: Path) -> None:
    path = written(tmp_path, ending)
    for of in (path, str(path)):
        Topology(of).check(["a", "b", "c", "d"])
        assert heard(of, ["a", "b", "c", "d"]) == HEARD


def test_an_edge_list_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "who.edges"
    path.write_text("# who hears whom\na b\nb c\nc d\nb d\n")
    assert heard(path, ["a", "b", "c", "d"]) == HEARD


def test_the_file_is_read_once(tmp_path: Path) -> None:
    path = written(tmp_path, ".txt")
    topology = Topology(path)
    topology.check(["a", "b", "c", "d"])
    path.unlink()
    assert topology.peers("a", ["a", "b", "c", "d"], 0, 1) == ["b"]


def test_a_graph_object_whose_nodes_are_numbers() -> None:
    graph = networkx.cycle_graph(4)
    clients = ["0", "1", "2", "3"]
    Topology(graph).check(clients)
    assert heard(graph, clients) == {"0": ["1", "3"], "1": ["0", "2"], "2": ["1", "3"], "3": ["0", "2"]}


def test_nobody_hears_itself_and_nobody_twice() -> None:
    graph = networkx.MultiGraph([("a", "a"), ("a", "b"), ("a", "b")])
    assert heard(graph, ["a", "b"]) == {"a": ["b"], "b": ["a"]}


def test_a_client_without_edges_hears_nobody() -> None:
    graph = networkx.Graph([("a", "b")])
    graph.add_node("c")
    Topology(graph).check(["a", "b", "c"])
    assert heard(graph, ["a", "b", "c"])["c"] == []


def test_an_edge_of_a_directed_graph_points_to_who_hears(tmp_path: Path) -> None:
    path = tmp_path / "directed.graphml"
    networkx.write_graphml(networkx.DiGraph([("a", "b"), ("b", "c")]), path)
    assert heard(path, ["a", "b", "c"]) == {"a": [], "b": ["a"], "c": ["b"]}


def test_a_graph_that_leaves_out_a_client_or_names_a_stranger_is_refused(tmp_path: Path) -> None:
    topology = Topology(written(tmp_path, ".txt"))
    with pytest.raises(InputError, match=r"topology.*no node 'e'"):
        topology.check(["a", "b", "c", "d", "e"])
    with pytest.raises(InputError, match=r"topology.*'d', which is no client"):
        topology.check(["a", "b", "c"])


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"topology: 'star' is neither all, pairs, ring nor a file"):
        Topology("star").check(["a"])
    broken = tmp_path / "broken.graphml"
    broken.write_text("<graphml")
    with pytest.raises(InputError, match=r"topology: .*broken\.graphml cannot be read"):
        Topology(broken).check(["a"])
    for kind in ("all", "pairs", "ring"):
        Topology(kind).check(["a"])


def test_a_plan_takes_a_networkx_graph_and_refuses_what_is_none() -> None:
    graph = networkx.path_graph(["a", "b", "c"])
    assert Topology(Plan(topology=graph).topology).peers("b", "abc", 0, 1) == ["a", "c"]
    with pytest.raises(InputError, match="networkx graph"):
        Plan(topology=3)
