"""A calculation with fixed numbers in one framework; the digest of the result's bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

from _worker import need, parser, say

SIZE = 512
STEPS = 20


def main() -> None:
    """Compute and print the digest."""
    made = parser(__doc__)
    made.add_argument("--kind", choices=sorted(KINDS), required=True)
    options = made.parse_args()
    try:
        data, values = KINDS[options.kind]()
    except ImportError as error:
        say(skip=f"{options.kind}: a library is not installed ({error})")
    say(digest=hashlib.sha256(data).hexdigest()[:16], values=values)


def _torch(expandable: bool = False) -> Any:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # what makes cuBLAS repeatable
    if expandable:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    torch = need("torch")
    if not torch.cuda.is_available():
        say(skip="PyTorch finds no GPU")
    torch.use_deterministic_algorithms(mode=True)
    torch.manual_seed(7)
    return torch


def _step(torch: Any, x: Any, w: Any) -> Any:
    return torch.nn.functional.gelu(x @ w) / SIZE**0.5 + x


def _start(torch: Any) -> tuple[Any, Any]:
    return torch.randn(SIZE, SIZE).cuda(), torch.randn(SIZE, SIZE).cuda()


def _bytes(x: Any) -> tuple[bytes, int]:
    array = x.detach().float().cpu().numpy()
    return array.tobytes(), array.size


def _eager(expandable: bool = False) -> tuple[bytes, int]:
    torch = _torch(expandable)
    x, w = _start(torch)
    for _ in range(STEPS):
        x = _step(torch, x, w)
    return _bytes(x)


def _compiled() -> tuple[bytes, int]:
    torch = _torch()
    need("triton")
    x, w = _start(torch)
    step = torch.compile(lambda x, w: _step(torch, x, w))
    for _ in range(STEPS):
        x = step(x, w)
    return _bytes(x)


def _graphs() -> tuple[bytes, int]:
    torch = _torch()
    x, w = _start(torch)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        _step(torch, x, w)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(_step(torch, x, w))
    for _ in range(STEPS):
        graph.replay()
    return _bytes(x)


def _jax() -> tuple[bytes, int]:
    os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true"
    jax = need("jax")
    if jax.default_backend() != "gpu":
        say(skip="JAX finds no GPU")
    key, other = jax.random.split(jax.random.PRNGKey(7))
    x, w = jax.random.normal(key, (SIZE, SIZE)), jax.random.normal(other, (SIZE, SIZE))
    step = jax.jit(lambda x, w: jax.nn.gelu(x @ w) / SIZE**0.5 + x)
    for _ in range(STEPS):
        x = step(x, w)
    return jax.device_get(x).tobytes(), x.size


def _cupy() -> tuple[bytes, int]:
    cupy = need("cupy")
    numpy = need("numpy")
    source = numpy.random.default_rng(7)
    x, w = (cupy.asarray(source.standard_normal((SIZE, SIZE)).astype("f4")) for _ in range(2))
    for _ in range(STEPS):
        x = cupy.tanh(x @ w / SIZE**0.5) + x
    return cupy.asnumpy(x).tobytes(), x.size


def _numba() -> tuple[bytes, int]:
    cuda, numpy = need("numba.cuda"), need("numpy")
    if not cuda.is_available():
        say(skip="numba finds no GPU")

    @cuda.jit
    def scale(x: Any, factor: float) -> None:
        at = cuda.grid(1)
        if at < x.size:
            x[at] = x[at] * factor + 1.0

    x = cuda.to_device(numpy.random.default_rng(7).standard_normal(SIZE * SIZE).astype("f4"))
    for _ in range(STEPS):
        scale[SIZE * SIZE // 256, 256](x, 0.5)
    return x.copy_to_host().tobytes(), x.size


KINDS: dict[str, Callable[[], tuple[bytes, int]]] = {
    "torch-eager": _eager,
    "torch-expandable": lambda: _eager(expandable=True),
    "torch-compile": _compiled,
    "torch-graphs": _graphs,
    "jax": _jax,
    "cupy": _cupy,
    "numba": _numba,
}

if __name__ == "__main__":
    main()
