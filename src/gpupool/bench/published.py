"""Figures that others published for similar measurements, with their conditions and sources."""

from __future__ import annotations

from dataclasses import dataclass

NVIDIA = (
    "https://github.com/NVIDIA/DeepLearningExamples/blob/291f0d02e815b148fa5c2b81bf07aa3552142895"
    "/PyTorch/Classification/ConvNets/resnet50v1.5/README.md"
)
BITFUSION = "README of github.com/alexhanl/machine-learning (Bitfusion 4.0.1)"
V100_1, V100_8 = "1 x V100 16GB (DGX-1), FP32, PyTorch 21.03", "8 x V100 16GB (DGX-1), FP32, PyTorch 21.03"
A100_1, A100_8 = "1 x A100 80GB (DGX A100), TF32, PyTorch 21.03", "8 x A100 80GB (DGX A100), TF32, PyTorch 21.03"
REMOTE = "V100 32GB over 10 GbE, MTU 9000; ratio to the same GPU in the same machine"


@dataclass(frozen=True, slots=True)
class Published:
    """One published figure. ``part`` is the benchmark that measures something similar."""

    part: str
    what: str
    value: str
    conditions: str
    source: str


PUBLISHED = (
    Published("train", "ResNet-50 v1.5 training", "367 images/s", V100_1, NVIDIA),
    Published("train", "ResNet-50 v1.5 training", "938 images/s", A100_1, NVIDIA),
    Published("scaling", "ResNet-50 v1.5 training", "2855 images/s, 7.76 times one GPU", V100_8, NVIDIA),
    Published("scaling", "ResNet-50 v1.5 training", "7248 images/s, 7.72 times one GPU", A100_8, NVIDIA),
    Published("overhead", "remote ResNet-50 training, batch 256", "0.972", REMOTE, BITFUSION),
    Published("overhead", "remote ResNet-50 inference, batch 256", "0.980", REMOTE, BITFUSION),
    Published("overhead", "remote ResNet-50 inference, batch 1", "0.62", REMOTE, BITFUSION),
    Published("overhead", "remote ResNeXt-101 inference, batch 1", "0.69", REMOTE, BITFUSION),
)
