"""Training steps of a model, written in plain PyTorch, for a window of time; reports the number of samples."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from _worker import begin, need, parser, say

IMAGE = 224
TOKENS = 128
WIDTH = 512
VOCABULARY = 8192
CLASSES = 1000
WARM_UP = 5
QUEUED = 8  # steps


def main() -> None:
    """Build, warm up, begin together, count."""
    made = parser(__doc__)
    made.add_argument("--model", choices=["resnet50", "transformer"], required=True)
    made.add_argument("--batch", type=int, required=True)
    made.add_argument("--sync", action="store_true", help="wait for the GPU after each step")
    options = made.parse_args()
    torch = need("torch")
    if not torch.cuda.is_available():
        say(skip="PyTorch finds no GPU")
    torch.manual_seed(7)
    step = (_resnet if options.model == "resnet50" else _transformer)(torch, options.batch)
    try:
        for _ in range(WARM_UP):
            step()
    except torch.cuda.OutOfMemoryError:
        say(skip=f"a batch of {options.batch} does not fit")
    torch.cuda.synchronize()
    until, steps = begin(options), 0
    begun = time.monotonic()
    marks: deque[Any] = deque()
    while time.monotonic() < until:
        step()
        steps += 1
        if options.sync:
            torch.cuda.synchronize()
            continue
        marks.append(torch.cuda.Event())
        marks[-1].record()
        if len(marks) > QUEUED:  # as a training that reads its loss now and then
            marks.popleft().synchronize()
    torch.cuda.synchronize()
    say(samples=steps * options.batch, steps=steps, seconds=time.monotonic() - begun)


def _trainer(torch: Any, model: Any, inputs: Any, targets: Any) -> Callable[[], None]:
    model = model.cuda().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(model(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimiser.step()

    return step


def _resnet(torch: Any, batch: int) -> Callable[[], None]:
    images = torch.randn(batch, 3, IMAGE, IMAGE, device="cuda")
    return _trainer(torch, _resnet50(torch.nn), images, torch.randint(CLASSES, (batch,), device="cuda"))


def _resnet50(nn: Any) -> Any:
    """Return the network of He et al., 2015 (Deep Residual Learning), with 50 layers."""

    class Bottleneck(nn.Module):
        def __init__(self, inside: int, narrow: int, stride: int) -> None:
            super().__init__()
            wide = narrow * 4
            self.body = nn.Sequential(
                *_conv(nn, inside, narrow, 1),
                nn.ReLU(),
                *_conv(nn, narrow, narrow, 3, stride),
                nn.ReLU(),
                *_conv(nn, narrow, wide, 1),
            )
            straight = stride == 1 and inside == wide
            self.side = nn.Identity() if straight else nn.Sequential(*_conv(nn, inside, wide, 1, stride))

        def forward(self, x: Any) -> Any:
            return nn.functional.relu(self.body(x) + self.side(x))

    layers = [*_conv(nn, 3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for narrow, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(inside, narrow, stride if block == 0 else 1))
            inside = narrow * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, CLASSES))


def _conv(nn: Any, inside: int, outside: int, size: int, stride: int = 1) -> tuple[Any, Any]:
    return nn.Conv2d(inside, outside, size, stride, size // 2, bias=False), nn.BatchNorm2d(outside)


def _transformer(torch: Any, batch: int) -> Callable[[], None]:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(WIDTH, 8, WIDTH * 4, dropout=0.0, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), body, nn.Linear(WIDTH, VOCABULARY))
    tokens = torch.randint(VOCABULARY, (batch, TOKENS), device="cuda")
    return _trainer(torch, model, tokens, tokens)


if __name__ == "__main__":
    main()
