"""Slices on trust: the program is told its part and the frameworks that listen keep to it.

PyTorch is left alone on purpose. Its allocator reads ``per_process_memory_fraction`` from ``PYTORCH_CUDA_ALLOC_CONF``
only since a change of September 2025 (pull request 161035 of pytorch/pytorch), and every earlier release fails at the
first CUDA call with "Unrecognized CachingAllocator option". A PyTorch program keeps to its slice with
``torch.cuda.set_per_process_memory_fraction(float(os.environ["GPUPOOL_GPU_SHARE"]))``.
"""

from __future__ import annotations

from typing import ClassVar

from gpupool.domain.supervision import ProcessSpec
from gpupool.domain.units import WHOLE_GPU
from gpupool.node.sharing.stateless import StatelessSharing
from gpupool.node.sharing.variables import least_permille

ADVISORY_NOTE = "memory and compute of this slice are not enforced on this node: mode advisory"
# What JAX takes of a card by itself; the rest is for the CUDA context and libraries, on a slice as on a card.
_JAX_PART = 0.75
# JAX refuses to start when the old and the new name are both set; the old one works in every release.
_JAX_OLD_NAME = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_JAX_NAMES = frozenset({_JAX_OLD_NAME, "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"})
_TENSORFLOW_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


class AdvisorySharing(StatelessSharing):
    """The mode for slices where nothing on the node can enforce them.

    Hints for frameworks are only given where the program's own environment does not decide the matter.
    """

    name: ClassVar[str] = "advisory"

    def environment(self, spec: ProcessSpec) -> dict[str, str]:
        """The variables that show the program its GPUs, and hints that make frameworks keep to the slice."""
        hints = {} if spec.emulated or not spec.gpus else _framework_hints(spec)
        return self.visible(spec) | hints

    def notes(self, spec: ProcessSpec) -> tuple[str, ...]:
        """That the slice is on trust."""
        return (*self.emulation_note(spec), ADVISORY_NOTE) if spec.gpus else ()


def _framework_hints(spec: ProcessSpec) -> dict[str, str]:
    """Documented by JAX ("GPU memory allocation") and TensorFlow ("Use a GPU")."""
    hints = {}
    if not _JAX_NAMES & spec.env.keys():
        hints[_JAX_OLD_NAME] = f"{least_permille(spec) / WHOLE_GPU * _JAX_PART:.4f}"
    if _TENSORFLOW_GROWTH not in spec.env:
        hints[_TENSORFLOW_GROWTH] = "true"
    return hints
