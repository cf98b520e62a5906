"""Train ResNet-50 on synthetic images for some seconds and print images per second as one JSON line.

Runs in a job. Uses PyTorch, else TensorFlow, else a NumPy proxy: matrix products with the number of operations of
ResNet-50, and no network. ``program`` says which one ran and on which device; ``proxy`` is true for the last one.
Under torchrun and mpirun all ranks train, gradients are added by one all-reduce for each step, and rank 0 prints
the total with ``reduce_share``, the part of the time that the all-reduce took.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from typing import Any

GPU_IMAGE, CPU_IMAGE = 224, 48  # pixels; a CPU would need minutes for a step of 256 large images
CLASSES = 1000
OPERATIONS_PER_IMAGE = 3 * 2 * 4.1e9  # at 224 pixels: forward 4.1e9 multiply-adds, backward twice that
PARAMETERS = 25_557_032  # of ResNet-50: the size of its gradients
PROXY_SIZE = 512  # rows of the proxy's matrices
MIN_STEPS = 2


def finish(**values: Any) -> None:
    """Print the result and end."""
    print(json.dumps(values), flush=True)
    sys.stdout.flush()
    sys.exit(0)


class TorchTraining:
    """ResNet-50 in PyTorch; distributed if torchrun has started it."""

    def __init__(self, batch: int, image: int) -> None:
        torch: Any = importlib.import_module("torch")
        self._torch = torch
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        gpu = torch.cuda.is_available()
        self.image = image or (GPU_IMAGE if gpu else CPU_IMAGE)
        self._device = torch.device(f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}" if gpu else "cpu")
        self.program = f"ResNet-50 ({self.image} px), PyTorch" + ("" if gpu else " on the CPU")
        self.proxy = False
        if self.world > 1:
            torch.distributed.init_process_group("nccl" if gpu else "gloo")
        self._model = resnet50(torch).to(self._device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01, momentum=0.9)
        self._images = torch.randn(batch, 3, self.image, self.image, device=self._device)
        self._labels = torch.randint(0, CLASSES, (batch,), device=self._device)

    def compute(self) -> None:
        """Compute the gradients of one batch."""
        self._optimizer.zero_grad()
        torch = self._torch
        torch.nn.functional.cross_entropy(self._model(self._images), self._labels).backward()
        self._synchronize()

    def reduce(self) -> None:
        """Add the gradients of all ranks."""
        if self.world > 1:
            torch = self._torch
            gradients = [one.grad for one in self._model.parameters()]
            flat = torch.cat([one.reshape(-1) for one in gradients])
            torch.distributed.all_reduce(flat)
            parts = flat.split([one.numel() for one in gradients])
            for one, part in zip(gradients, parts, strict=True):
                one.copy_(part.view_as(one) / self.world)
            self._synchronize()

    def update(self) -> None:
        """Change the parameters."""
        self._optimizer.step()
        self._synchronize()

    def agree(self, value: int) -> int:
        """Return rank 0's value."""
        if self.world == 1:
            return value
        found = self._torch.tensor([value], device=self._device)
        self._torch.distributed.broadcast(found, 0)
        return int(found.item())

    def close(self) -> None:
        """Leave the group."""
        if self.world > 1:
            self._torch.distributed.destroy_process_group()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize()


def resnet50(torch: Any) -> Any:
    """Return the network, as in "Deep Residual Learning for Image Recognition", table 1."""
    nn = torch.nn

    class Bottleneck(nn.Module):  # type: ignore[misc, name-defined]  # torch is imported when it runs
        """Three convolutions and a shortcut."""

        def __init__(self, channels: int, width: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
                *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
                *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
            )
            shortcut = (nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
            self.shortcut = nn.Sequential(*shortcut) if stride != 1 or channels != 4 * width else nn.Identity()

        def forward(self, x: Any) -> Any:
            """Return the activations."""
            return torch.relu(self.body(x) + self.shortcut(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


class TensorFlowTraining:
    """ResNet-50 of Keras; distributed by ``MultiWorkerMirroredStrategy`` if TF_CONFIG is set.

    TensorFlow reduces within a step, so the all-reduce has no time of its own.
    """

    def __init__(self, batch: int, image: int) -> None:
        tf: Any = importlib.import_module("tensorflow")
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        self.world = len(config.get("cluster", {}).get("worker", ())) or 1
        self.rank = int(config.get("task", {}).get("index", 0)) if self.world > 1 else 0
        strategy = tf.distribute.MultiWorkerMirroredStrategy() if self.world > 1 else tf.distribute.get_strategy()
        gpu = bool(tf.config.list_physical_devices("GPU"))
        self.image = image or (GPU_IMAGE if gpu else CPU_IMAGE)
        self.program = f"ResNet-50 ({self.image} px), TensorFlow" + ("" if gpu else " on the CPU")
        self.proxy = False
        with strategy.scope():
            model = tf.keras.applications.ResNet50(weights=None, input_shape=(self.image, self.image, 3))
            optimizer = tf.keras.optimizers.SGD(0.01)
            optimizer.build(model.trainable_variables)
        images, labels = tf.random.normal((batch, self.image, self.image, 3)), tf.zeros((batch,), tf.int32)

        def train() -> Any:
            with tf.GradientTape() as tape:
                losses = tf.keras.losses.sparse_categorical_crossentropy(labels, model(images, training=True))
                loss = tf.reduce_mean(losses) / self.world
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        # Not Keras's fit: Keras 3 refuses the values of several workers.
        self._step = tf.function(lambda: strategy.run(train))

    def compute(self) -> None:
        """Train one step on all workers."""
        self._step()

    def reduce(self) -> None:
        """Do nothing: the step includes it."""

    update = reduce

    def agree(self, value: int) -> int:
        """Return the value; workers of one strategy get fixed steps."""
        return value if self.world == 1 else 2 * MIN_STEPS

    def close(self) -> None:
        """Do nothing."""


class NumpyProxy:
    """Matrix products with the operations of ResNet-50; under mpirun an all-reduce of as many gradients."""

    def __init__(self, batch: int, image: int) -> None:
        np: Any = importlib.import_module("numpy")
        self._numpy = np
        self.world = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
        self._comm: Any = None
        if self.world > 1:
            self._comm = importlib.import_module("mpi4py.MPI").COMM_WORLD
        self.image = image or CPU_IMAGE
        self.program = f"NumPy proxy ({self.image} px), not ResNet-50"
        self.proxy = True
        operations = batch * OPERATIONS_PER_IMAGE * (self.image / 224) ** 2
        self._products = max(1, round(operations / (2 * PROXY_SIZE**3)))
        self._a = np.ones((PROXY_SIZE, PROXY_SIZE), np.float32)
        self._b = np.full_like(self._a, 1 / PROXY_SIZE)
        self._gradients = np.ones(PARAMETERS if self._comm else 1, np.float32)
        self._total = np.empty_like(self._gradients)

    def compute(self) -> None:
        """Multiply the matrices of one step."""
        for _ in range(self._products):
            self._numpy.matmul(self._a, self._b)

    def reduce(self) -> None:
        """Add the gradients of all ranks."""
        if self._comm:
            self._comm.Allreduce(self._gradients, self._total)

    def update(self) -> None:
        """Do nothing: a proxy has no parameters."""

    def agree(self, value: int) -> int:
        """Return rank 0's value."""
        return int(self._comm.bcast(value)) if self._comm else value

    def close(self) -> None:
        """Do nothing: MPI ends with the program."""


FRAMEWORKS = {"torch": TorchTraining, "tensorflow": TensorFlowTraining, "numpy": NumpyProxy}


def measure(training: Any, seconds: float) -> tuple[int, float, float]:
    """Return steps, their time and the time of the all-reduces in it."""
    for _ in range(MIN_STEPS - 1):  # the first step allocates and compiles
        training.compute()
        training.reduce()
    began = time.monotonic()
    training.compute()
    training.reduce()
    training.update()
    steps = training.agree(max(MIN_STEPS, int(seconds / (time.monotonic() - began))))
    reduce_s, began = 0.0, time.monotonic()
    for _ in range(steps):
        training.compute()
        before = time.monotonic()
        training.reduce()
        reduce_s += time.monotonic() - before
        training.update()
    return steps, time.monotonic() - began, reduce_s


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=("auto", *FRAMEWORKS), default="auto")
    parser.add_argument("--batch", type=int, default=32, help="images of each rank for each step")
    parser.add_argument("--image", type=int, default=0, help="pixels; default: 224 on a GPU, 32 on a CPU")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    wanted = list(FRAMEWORKS) if options.framework == "auto" else [options.framework]
    installed = [name for name in wanted if importlib.util.find_spec(name) is not None]
    if not installed:
        finish(skip=f"the Python of the job ({sys.executable}) has none of: {', '.join(wanted)}")
    try:
        training: Any = FRAMEWORKS[installed[0]](options.batch, options.image)
        steps, took_s, reduce_s = measure(training, options.seconds)
        ended_at = time.time()
    except (RuntimeError, MemoryError, ImportError) as error:
        if isinstance(error, RuntimeError) and "out of memory" not in str(error):
            raise
        finish(skip=f"batch {options.batch}: {str(error).splitlines()[0][:200]}")
    training.close()
    if training.rank == 0:
        finish(
            program=training.program,
            proxy=training.proxy,
            images_per_s=options.batch * training.world * steps / took_s,
            reduce_share=reduce_s / took_s,
            steps=steps,
            train_s=took_s,
            ended_at=ended_at,
            batch=options.batch,
            world=training.world,
        )


if __name__ == "__main__":
    main()
