"""Four ways to learn from the same five clients: no-regret, mutual learning, one model for all, and each alone."""

import mutua
from mutua.methods import FML, FedAvg, Independent, Method, NoRegret

METHODS: dict[str, Method] = {
    "no-regret": NoRegret(),
    "FML personal": FML(),
    "FedAvg's global": FedAvg(),
    "alone": Independent(),
}


def main(rounds: int = 10, samples_per_client: int = 200) -> dict[str, mutua.Result]:
    federation = mutua.Federation.from_samples(
        mutua.load("mnist5k").train,
        partition=mutua.partitions.Shards(clients=5, shards_per_client=4),
        models=["mlp", "lenet5", "cnn1", "mlp", "lenet5"],
        global_model="lenet5",
        samples_per_client=samples_per_client,
        seed=0,
    )
    results = {
        name: mutua.run(
            method,
            federation,
            rounds=rounds,
            epochs=2,
            batch_size=20,
            optimizer=mutua.SGD(lr=0.01, momentum=0.9),
            evaluate_every=5,
            seed=0,
        )
        for name, method in METHODS.items()
    }
    for name, result in results.items():
        left = ", ".join(result.ledger.kinds("up")) or "nothing"
        print(f"{name:16} {100 * (result.mean_accuracy() or 0):5.1f} %   left the clients: {left}")
    print(results["no-regret"].clients[0].benefit())  # is this client better off for having joined?
    return results


if __name__ == "__main__":
    main()
