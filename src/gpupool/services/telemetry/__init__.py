"""Samples of GPUs, nodes and programs, and their rollups.

The control plane pulls samples from each node once a second and keeps them for ten minutes. The store keeps rollups of
minutes and hours.

``service`` pulls samples and answers queries; ``intake`` takes samples in; ``rings`` holds those of the last ten
minutes; ``tallies`` adds samples up to rollup rows; ``series`` makes columns over time from samples or rows.
The interface of the store is ``ports.usage.SampleStore``.
"""
