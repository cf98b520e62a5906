"""``gpupool doctor``: the checks of a machine and of a pool's folders, each with a remedy."""
