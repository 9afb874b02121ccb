"""The same run on this machine's cores and on a Ray cluster; on CPUs both give the same bytes."""

import sys

import torch

import mutua


def main(address: str | None = None, rounds: int = 5, samples_per_client: int = 100) -> bool:
    """Run on both engines; whether the global is the same to the bit. Without an address, Ray starts here."""
    federation = mutua.Federation.from_samples(
        mutua.load("mnist5k").train,
        partition=mutua.partitions.Dirichlet(clients=8, alpha=0.5),
        models=["mlp", "lenet5", "cnn1", "mlp", "lenet5", "cnn1", "mlp", "lenet5"],
        global_model="lenet5",
        samples_per_client=samples_per_client,
        seed=0,
    )
    ray = {"name": "ray", "address": address}
    here, there = (
        mutua.run("fml", federation, engine=engine, rounds=rounds, batch_size=20, seed=0)
        for engine in ("local", ray)
    )
    print(there)
    one, other = here.global_state or {}, there.global_state or {}
    same = all(torch.equal(one[name], other[name]) for name in one)
    print(f"local {here.seconds:.0f} s, ray {there.seconds:.0f} s; the same bytes: {same}")
    return same


if __name__ == "__main__":
    main(*sys.argv[1:2])
