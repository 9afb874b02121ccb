"""Two nodes, one of which is removed in mid-round: prints whether the bytes are those of the local engine."""

import os
import sys
import threading
import time
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
sys.path.insert(0, str(Path(__file__).parents[1]))

from ray.cluster_utils import Cluster

import mutua
from conftest import make_federation
from mutua.methods import FML
from mutua.rounds.events import Event, Retried, RoundEnded
from watching_runs import keys

SIGN = Path(sys.argv[1]) / "doomed"


class Waiting(FML):
    """Its clients wait for their end on a node that is doomed."""

    def train(self, client, brief):
        """As FML does."""
        import ray

        if SIGN.exists() and ray.is_initialized() and SIGN.read_text() == ray.get_runtime_context().get_node_id():
            SIGN.with_suffix(".reached").touch()
            time.sleep(60)
        return super().train(client, brief)


def main(times: int) -> None:
    """Remove a node so many times, each time in another federation."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for number in range(times):
        federation = make_federation([9, 12, 7, 5, 8], seed=number)
        settings = {"rounds": 3, "batch_size": 4, "device": "cpu", "progress": False, "seed": number}
        here = keys(mutua.run(Waiting(), federation, workers=1, **settings))
        node, again = cluster.add_node(num_cpus=1), list[Retried]()
        cluster.wait_for_nodes()

        def remove(node=node) -> None:
            while not SIGN.with_suffix(".reached").exists():
                time.sleep(0.02)
            cluster.remove_node(node, allow_graceful=False)

        def watch(event: Event, node=node, again=again, remove=remove) -> None:
            if isinstance(event, RoundEnded) and event.round == 1:
                SIGN.write_text(node.node_id)
                threading.Thread(target=remove, daemon=True).start()
            if isinstance(event, Retried):
                again.append(event)

        engine = {"name": "ray", "address": cluster.address}
        result = mutua.run(Waiting(), federation, workers=2, engine=engine, callbacks=[watch], **settings)
        same = keys(result) == here
        print("same" if same and again else f"number {number}: {same}, {again}", flush=True)
        SIGN.unlink()
        SIGN.with_suffix(".reached").unlink()
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[2]))
