"""A model of your own: any nn.Module class whose arguments are among channels, size and classes."""

import torch
from torch import Tensor, nn

import mutua


class Patches(nn.Module):
    """Cuts an image into 7×7 patches and mixes them; `head` is the part that knows classes."""

    def __init__(self, channels: int, size: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, 32, kernel_size=7, stride=7)
        self.mix = nn.Conv2d(32, 32, kernel_size=3, padding=1)
        self.head = nn.Linear(32 * (size // 7) ** 2, classes)

    def forward(self, x: Tensor) -> Tensor:
        """One score per class."""
        patches = torch.relu(self.patches(x))
        mixed: Tensor = torch.relu(self.mix(patches))
        scores: Tensor = self.head(mixed.flatten(1))
        return scores


def main(rounds: int = 10, samples_per_client: int = 200) -> mutua.Result:
    federation = mutua.Federation.from_samples(
        mutua.load("mnist5k").train,
        partition=mutua.partitions.Dirichlet(clients=3, alpha=0.5),
        models=[Patches, "lenet5", "mlp"],  # a class is built for each client, under the client's own seed
        global_model="lenet5",
        samples_per_client=samples_per_client,
        seed=0,
    )
    result = mutua.run(
        mutua.methods.NoRegret(),
        federation,
        rounds=rounds,
        epochs=2,
        batch_size=20,
        optimizer=mutua.Adam(lr=0.001),
        evaluate_every=5,
        seed=0,
    )
    for client in result.clients:
        print(f"{client.id}  {client.architecture.label:8} {100 * (client.accuracy() or 0):5.1f} %")
    return result


if __name__ == "__main__":
    main()
