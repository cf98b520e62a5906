"""JAX: write what it finds as one JSON object. Its kernels do not compute on an emulated GPU.

JAX looks for a device file before it asks the driver; an emulated GPU has none.
"""

import gc
import json
import os
import sys
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_MEM_FRACTION": "1.0"}
os.environ |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_ALLOCATOR": sys.argv[1]}

import jax
import jax._src.hardware_utils
import jax.numpy as jnp
import numpy as np

jax._src.hardware_utils.has_visible_nvidia_gpu = lambda: True
COUNT, STEP = 50_000, 64 << 20


def fill() -> dict[str, Any]:
    """Take memory until JAX refuses."""
    taken = []
    try:
        while True:
            taken.append(jnp.zeros(STEP, dtype=jnp.uint8).block_until_ready())
    except jax.errors.JaxRuntimeError as error:
        return {"mib": len(taken) * (STEP >> 20), "error": str(error).partition(":")[0]}


def main() -> None:
    [device] = jax.devices()
    found: dict[str, Any] = {"version": jax.__version__, "kind": device.device_kind}
    found["total_mib"] = (device.memory_stats() or {}).get("bytes_limit", 0) >> 20
    host = np.arange(COUNT, dtype=np.float32)
    x = jax.device_put(host)
    found["copied"] = bool((np.asarray(x) == host).all())
    found["matmul"] = list(jax.jit(lambda a: a @ a.T)(x.reshape(200, 250)).shape)  # by cuBLAS
    found["plain"] = fill()
    del x
    gc.collect()
    sys.stdout.write(json.dumps(found))


main()
