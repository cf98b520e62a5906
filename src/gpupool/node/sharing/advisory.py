"""Slices without enforcement: the program gets its share in variables that some frameworks respect.

PyTorch gets no hint on purpose. Its allocator reads ``per_process_memory_fraction`` from ``PYTORCH_CUDA_ALLOC_CONF``
only since September 2025 (pull request 161035 of pytorch/pytorch). Earlier releases fail at the first CUDA call with
"Unrecognized CachingAllocator option". A PyTorch program can limit itself with
``torch.cuda.set_per_process_memory_fraction(float(os.environ["GPUPOOL_GPU_SHARE"]))``.
"""

from __future__ import annotations

from typing import ClassVar

from gpupool.domain.units import WHOLE_GPU
from gpupool.domain.work.program.supervision import ProcessSpec
from gpupool.node.sharing.stateless import StatelessSharing
from gpupool.node.sharing.variables import ADVISORY_NOTE, least_permille

# JAX preallocates this fraction of a GPU by default; the rest is for the CUDA context and libraries.
_JAX_FRACTION = 0.75
# JAX refuses to start when the old and the new name are both set; the old one works in every release.
_JAX_OLD_NAME = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_JAX_NAMES = frozenset({_JAX_OLD_NAME, "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"})
_TENSORFLOW_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


class AdvisorySharing(StatelessSharing):
    """The mode for slices where nothing on the node can enforce them.

    Hints for frameworks are only set if the program's own environment has no such variable.
    """

    name: ClassVar[str] = "advisory"

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """Return the variables for visible GPUs, and hints for frameworks to stay within the slice."""
        hints = {} if spec.emulated or not spec.gpus else _framework_hints(spec)
        return self.visible(spec) | hints

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """Return the note that the slice is not enforced."""
        return (*self.emulation_note(spec), ADVISORY_NOTE) if spec.gpus else ()


def _framework_hints(spec: ProcessSpec) -> dict[str, str]:
    """Return the hints documented by JAX ("GPU memory allocation") and TensorFlow ("Use a GPU")."""
    hints = {}
    if not _JAX_NAMES & spec.env.keys():
        hints[_JAX_OLD_NAME] = f"{least_permille(spec) / WHOLE_GPU * _JAX_FRACTION:.4f}"
    if _TENSORFLOW_GROWTH not in spec.env:
        hints[_TENSORFLOW_GROWTH] = "true"
    return hints
