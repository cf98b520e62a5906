"""Train with TensorFlow's ParameterServerStrategy: a chief that coordinates, workers that compute, servers that store.

    gpupool submit mnist --framework tf --chief --ps 1 --workers 2 -- python3 tf_parameter_server.py

Every task runs this same program; TF_CONFIG defines its task. It does not depend on the pool.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

STEPS = int(os.environ.get("STEPS", "40"))
BATCH = 32


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return a line with a little noise, the same in every process."""
    random = np.random.default_rng(5)
    inputs = random.standard_normal((BATCH, 4)).astype(np.float32)
    weights = np.array([[1.0], [-2.0], [0.5], [3.0]], dtype=np.float32)
    return inputs, inputs @ weights + 0.01 * random.standard_normal((BATCH, 1)).astype(np.float32)


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Run a worker or a parameter server until it is stopped."""
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def coordinate(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Run the chief: schedule steps one after another, so that the result does not depend on the speed of workers."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    inputs, targets = map(tf.constant, data())
    with strategy.scope():
        weights = tf.Variable(tf.zeros((4, 1)))

    @tf.function
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((inputs @ weights - targets) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, weights))
        return loss

    for _ in range(STEPS):
        loss = coordinator.schedule(step)
        coordinator.join()
    print(f"loss {float(loss.fetch()):.6f}, without servers {alone():.6f}", flush=True)


def alone() -> float:
    """Compute the same in one process with NumPy."""
    inputs, targets = data()
    weights = np.zeros((4, 1), dtype=np.float32)
    loss = 0.0
    for _ in range(STEPS):
        error = inputs @ weights - targets
        loss = float((error**2).mean())
        weights -= 0.1 * 2 * inputs.T @ error / len(inputs)
    return loss


def main() -> None:
    """Run the task that TF_CONFIG defines."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in {"worker", "ps"}:
        serve(resolver)
    else:
        coordinate(resolver)


if __name__ == "__main__":
    main()
