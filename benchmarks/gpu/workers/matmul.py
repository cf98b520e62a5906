"""Products of matrices with PyTorch for a window of time; reports their number."""

from __future__ import annotations

import time

from _worker import begin, need, parser, say

SIZE = 2048
BATCH = 4


def main() -> None:
    """Two batches at most are under way, so that what is counted is done."""
    options = parser(__doc__).parse_args()
    torch = need("torch")
    if not torch.cuda.is_available():
        say(skip="PyTorch finds no GPU")
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16)
    b = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16)
    torch.mm(a, b)
    torch.cuda.synchronize()
    until, done = begin(options), 0
    begun = time.monotonic()
    marks = []
    while time.monotonic() < until:
        for _ in range(BATCH):
            torch.mm(a, b)
        mark = torch.cuda.Event()
        mark.record()
        marks.append(mark)
        if len(marks) > 2:
            marks.pop(0).synchronize()
            done += BATCH if time.monotonic() < until else 0
    torch.cuda.synchronize()
    say(work=float(done), launches=done, seconds=time.monotonic() - begun)


if __name__ == "__main__":
    main()
