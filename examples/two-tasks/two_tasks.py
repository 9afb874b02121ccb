"""Two clients with different tasks share the body of a model; each completes it with its own adaptor.

One knows the digits zero to four, the other five to nine; neither knows the class names of the other.
"""

from dataclasses import replace

import mutua

TASKS = {
    "low": ("zero", "one", "two", "three", "four"),
    "high": ("five", "six", "seven", "eight", "nine"),
}


def client(name: str, first_digit: int, train: int, held: int = 300) -> mutua.Client:
    """A client with five digits as its classes. The data set cycles through the digits, so slices are balanced."""
    digits = mutua.load("mnist5k").train
    mine = (digits.y >= first_digit) & (digits.y < first_digit + 5)
    samples = digits.take(mine.nonzero()[:, 0])
    samples = replace(samples, y=samples.y - first_digit, classes=TASKS[name])
    return mutua.Client(
        name,
        train=samples.take(range(train)),
        val=samples.take(range(train, train + 50)),
        test=samples.take(range(train + 50, train + 50 + held)),
        model=mutua.Architecture.of("cnn1"),
    )


def main(rounds: int = 10, train: int = 150) -> dict[str, mutua.Result]:
    federation = mutua.Federation(
        (client("low", 0, train), client("high", 5, train)),
        global_model=mutua.Architecture.of({"name": "lenet5", "share": "body"}),
    )
    results = {
        method.name: mutua.run(
            method,
            federation,
            rounds=rounds,
            epochs=2,
            batch_size=20,
            optimizer=mutua.SGD(lr=0.01, momentum=0.9),
            evaluate_every=5,
            seed=0,
        )
        for method in (mutua.methods.NoRegret(), mutua.methods.FML(), mutua.methods.Independent())
    }
    for name, result in results.items():
        scores = "  ".join(f"{c.id} {100 * (c.accuracy() or 0):5.1f} %" for c in result.clients)
        print(f"{name:12} {scores}")
    left = sorted(results["fml"].global_state or {})
    print(f"shared and merged: {', '.join(left)}")
    return results


if __name__ == "__main__":
    main()
