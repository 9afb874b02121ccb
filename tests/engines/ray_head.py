"""A Ray cluster on this machine, in a process of its own: prints its address, and ends when its stdin does."""

import os
import sys

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

from ray.cluster_utils import Cluster

made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False})
print(made.address, flush=True)
sys.stdin.read()
made.shutdown()
