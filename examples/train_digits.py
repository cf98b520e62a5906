"""Train a small neural network to read handwritten digits: an ordinary program that does not depend on gpupool.

It trains with PyTorch on a GPU if it finds one, with PyTorch on the CPU if there is none, and with NumPy alone if
PyTorch is not installed. With ``--checkpoint FILE`` it saves its state after every epoch and continues from there when
it is started again, so it may be stopped at any time.
"""

from __future__ import annotations

import argparse
import gzip
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]  # a module's name that stands for none

DATA = Path(__file__).parent / "data" / "digits.csv.gz"
PIXELS, DIGITS = 64, 10
TEST_PART = 0.2
SPLIT_SEED = 1998  # the split does not depend on --seed, so that runs can be compared
MOMENTUM = 0.9

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Images:
    """Pixels from 0 to 1, shape (n, 64), and the digit of each image, shape (n,)."""

    pixels: Floats
    digits: Labels

    def part(self, rows: Labels) -> Images:
        """Return some of the images."""
        return Images(self.pixels[rows], self.digits[rows])


def load_digits() -> tuple[Images, Images]:
    """Return the training and test images; one in five of each digit is a test image."""
    with gzip.open(DATA, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    everything = Images((table[:, :PIXELS] / 16).astype(np.float32), table[:, PIXELS])
    shuffled = np.random.default_rng(SPLIT_SEED).permutation(len(table))
    by_digit = [shuffled[everything.digits[shuffled] == digit] for digit in range(DIGITS)]
    test = np.concatenate([rows[: round(len(rows) * TEST_PART)] for rows in by_digit])
    return everything.part(np.setdiff1d(shuffled, test)), everything.part(test)


class Model(Protocol):
    """A network with one hidden layer: trained by stochastic gradient descent with momentum on the cross-entropy."""

    def train_batch(self, batch: Images, lr: float) -> float:
        """Train on some images; return their mean loss before that."""

    def accuracy(self, images: Images) -> float:
        """Return the fraction of images that are classified correctly."""

    def arrays(self) -> list[Floats]:
        """Return weights, then momenta."""

    def restore(self, arrays: list[Floats]) -> None:
        """Continue from the result of ``arrays``."""


class NumpyModel:
    """The network in plain NumPy."""

    def __init__(self, weights: list[Floats]) -> None:
        self.weights = weights
        self.momenta = [np.zeros_like(w) for w in weights]

    def _forward(self, pixels: Floats) -> tuple[Floats, Floats]:
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(pixels @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, scores / scores.sum(axis=1, keepdims=True)

    def train_batch(self, batch: Images, lr: float) -> float:
        """Make one step of gradient descent."""
        rows = np.arange(len(batch.digits))
        hidden, chances = self._forward(batch.pixels)
        loss = -np.log(chances[rows, batch.digits] + 1e-12).mean()
        error = chances.copy()
        error[rows, batch.digits] -= 1
        error /= len(rows)
        below = (error @ self.weights[2].T) * (hidden > 0)
        gradients = [batch.pixels.T @ below, below.sum(axis=0), hidden.T @ error, error.sum(axis=0)]
        self.momenta = [MOMENTUM * m + gradient for m, gradient in zip(self.momenta, gradients, strict=True)]
        self.weights = [w - lr * m for w, m in zip(self.weights, self.momenta, strict=True)]
        return float(loss)

    def accuracy(self, images: Images) -> float:
        """Return the fraction of images whose most likely digit is correct."""
        return float((self._forward(images.pixels)[1].argmax(axis=1) == images.digits).mean())

    def arrays(self) -> list[Floats]:
        """Return weights, then momenta."""
        return [*self.weights, *self.momenta]

    def restore(self, arrays: list[Floats]) -> None:
        """Continue from the result of ``arrays``."""
        half = len(arrays) // 2
        self.weights, self.momenta = arrays[:half], arrays[half:]


class TorchModel:
    """The same network with PyTorch, on a GPU or the CPU."""

    def __init__(self, weights: list[Floats], device: torch.device) -> None:
        self.device = device
        self.weights = [self._tensor(w).requires_grad_() for w in weights]
        self.momenta = [torch.zeros_like(w, requires_grad=False) for w in self.weights]

    def _tensor(self, array: Floats | Labels) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _scores(self, pixels: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2 = self.weights
        return torch.relu(pixels @ w1 + b1) @ w2 + b2

    def train_batch(self, batch: Images, lr: float) -> float:
        """Make one step of gradient descent."""
        scores = self._scores(self._tensor(batch.pixels))
        loss = torch.nn.functional.cross_entropy(scores, self._tensor(batch.digits))
        gradients = torch.autograd.grad(loss, self.weights)
        with torch.no_grad():
            for weight, momentum, gradient in zip(self.weights, self.momenta, gradients, strict=True):
                momentum.mul_(MOMENTUM).add_(gradient)
                weight.sub_(lr * momentum)
        return loss.item()

    def accuracy(self, images: Images) -> float:
        """Return the fraction of images whose most likely digit is correct."""
        with torch.no_grad():
            guesses = self._scores(self._tensor(images.pixels)).argmax(dim=1).cpu().numpy()
        return float((guesses == images.digits).mean())

    def arrays(self) -> list[Floats]:
        """Return weights, then momenta."""
        return [tensor.detach().cpu().numpy() for tensor in (*self.weights, *self.momenta)]

    def restore(self, arrays: list[Floats]) -> None:
        """Continue from the result of ``arrays``."""
        half = len(arrays) // 2
        self.weights = [self._tensor(w).requires_grad_() for w in arrays[:half]]
        self.momenta = [self._tensor(m) for m in arrays[half:]]


def first_weights(hidden: int, seed: int) -> list[Floats]:
    """Return weights and biases of both layers, drawn as He et al. (2015) propose."""
    rng = np.random.default_rng(seed)

    def layer(inputs: int, outputs: int) -> list[Floats]:
        drawn = rng.normal(0, math.sqrt(2 / inputs), (inputs, outputs)).astype(np.float32)
        return [drawn, np.zeros(outputs, np.float32)]

    return layer(PIXELS, hidden) + layer(hidden, DIGITS)


def make_model(hidden: int, seed: int) -> tuple[Model, str]:
    """Return the network on the best available device, and the name of that device."""
    weights = first_weights(hidden, seed)
    if torch is None:
        return NumpyModel(weights), f"CPU (NumPy {np.__version__})"
    if not torch.cuda.is_available():
        return TorchModel(weights, torch.device("cpu")), f"CPU (PyTorch {torch.__version__})"
    free, total = (size >> 20 for size in torch.cuda.mem_get_info())
    name = f"{torch.cuda.get_device_name()}, {free} of {total} MiB free (PyTorch {torch.__version__})"
    return TorchModel(weights, torch.device("cuda")), name


def slice_seen() -> str:
    """Return the description of this process's slice of a GPU from the environment."""
    share = os.environ.get("GPUPOOL_GPU_SHARE")
    if share is None:
        return "none: started without a pool"
    emulated = ", emulated" if "GPUPOOL_EMULATED" in os.environ else ""
    return f"{share} of a GPU, {os.environ.get('GPUPOOL_GPU_MEMORY_MIB')} MiB{emulated}"


def save(file: Path, model: Model, epochs_done: int) -> None:
    """Write a checkpoint completely or not at all."""
    part = file.with_name(file.name + ".part")
    with part.open("wb") as out:
        np.savez(out, *model.arrays(), epochs_done=epochs_done)
    part.replace(file)


def resume(file: Path, model: Model) -> int:
    """Load a checkpoint into the model and return its number of epochs; 0 without one."""
    if not file.exists():
        return 0
    with np.load(file) as saved:
        stored = [saved[f"arr_{i}"] for i in range(len(saved.files) - 1)]
        if [a.shape for a in stored] != [a.shape for a in model.arrays()]:
            sys.exit(f"{file} is of a network of another size; give the same --hidden, or another file")
        model.restore(stored)
        return int(saved["epochs_done"])


def train_epoch(model: Model, images: Images, options: argparse.Namespace, epoch: int) -> float:
    """Train one epoch over all images in random order and return the mean loss."""
    order = np.random.default_rng([options.seed, epoch]).permutation(len(images.digits))
    size = options.batch_size
    batches = (images.part(order[start : start + size]) for start in range(0, len(order), size))
    return float(np.mean([model.train_batch(batch, options.lr) for batch in batches]))


def train(model: Model, options: argparse.Namespace) -> float:
    """Train to the last epoch; return the accuracy on images that were never trained on."""
    images, test = load_digits()
    done = resume(options.checkpoint, model) if options.checkpoint else 0
    if done:
        print(f"continuing after epoch {done} from {options.checkpoint}")
    seconds = 0.0
    for epoch in range(done + 1, options.epochs + 1):
        begin = time.perf_counter()
        loss = train_epoch(model, images, options, epoch)
        seconds += time.perf_counter() - begin
        if not math.isfinite(loss):
            sys.exit(f"the loss is {loss} in epoch {epoch}: choose a smaller --lr")
        if options.checkpoint:
            save(options.checkpoint, model, epoch)
        print(f"epoch {epoch:3d}  loss {loss:.4f}  test accuracy {model.accuracy(test):.2%}", flush=True)
    if seconds:
        print(f"throughput: {(options.epochs - done) * len(images.digits) / seconds:,.0f} images/s")
    return model.accuracy(test)


def on_term(_signum: int, _frame: object) -> NoReturn:
    """End the program after a stop request: the checkpoint already has the last complete epoch."""
    print("stopped by SIGTERM", flush=True)
    sys.exit(128 + signal.SIGTERM)


def above_zero(text: str) -> int:
    """Parse a positive integer for argparse."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train a small neural network to read handwritten digits.")
    parser.add_argument("--epochs", type=above_zero, default=20, help="passes over the data (%(default)s)")
    parser.add_argument("--batch-size", type=above_zero, default=32, help="images per step (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    parser.add_argument("--hidden", type=above_zero, default=128, help="neurons of the hidden layer (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first weights and the order (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="save to and continue from this file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Train and print the result."""
    options = parse(argv)
    signal.signal(signal.SIGTERM, on_term)
    np.seterr(over="ignore", invalid="ignore")  # a loss that is not a number is detected once an epoch
    model, device = make_model(options.hidden, options.seed)
    print(f"device: {device}")
    print(f"slice:  {slice_seen()}")
    accuracy = train(model, options)
    print(f"final test accuracy: {accuracy:.2%}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
