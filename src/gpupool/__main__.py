"""``python -m gpupool`` is the same program as ``gpupool``."""

from __future__ import annotations

from gpupool.cli.entry import main

if __name__ == "__main__":
    raise SystemExit(main())
