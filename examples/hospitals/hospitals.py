"""Four hospitals with tables: other sizes, patients and models, and one column that two of them lack."""

import numpy as np

import mutua

HOSPITALS = {"north": (400, 62), "south": (200, 55), "east": (120, 70), "west": (80, 58)}  # patients, mean age
MODELS = ["mlp", "res-mlp", "linear", "mlp"]


def patients(hospital: str, seed: int) -> dict[str, np.ndarray]:
    """A made-up table, as columns: who is ill depends on age, blood pressure and smoking, the same everywhere."""
    count, mean_age = HOSPITALS[hospital]
    rng = np.random.default_rng([seed, len(hospital), count])
    age = rng.normal(mean_age, 9, count).round()
    pressure = rng.normal(130, 15, count).round()
    smoker = rng.choice(["never", "former", "current"], count)
    risk = 0.15 * (age - 60) + 0.05 * (pressure - 130) + 2 * (smoker == "current") - 0.7
    ill = rng.random(count) < 1 / (1 + np.exp(-risk))
    table = {"age": age, "pressure": pressure, "smoker": smoker, "ill": np.where(ill, "yes", "no")}
    if hospital in ("east", "west"):
        del table["pressure"]  # these two do not measure it: missing in all of their rows
    return table


def main(rounds: int = 10, seed: int = 0) -> mutua.Result:
    """Train, and say to each hospital whether joining has helped it."""
    federation = mutua.Federation.from_tables(
        {name: patients(name, seed) for name in HOSPITALS},
        target="ill",
        models=MODELS,
        global_model="mlp",
        seed=seed,
    )
    print(federation)
    result = mutua.run(
        "no-regret", federation, rounds=rounds, epochs=2, batch_size=16, optimizer=mutua.SGD(lr=0.05), seed=seed
    )
    for hospital in result.clients:
        print(hospital.id, hospital.benefit(noun="patients").sentence)
    return result


if __name__ == "__main__":
    main().save("hospitals-run")
