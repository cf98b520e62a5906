"""Kubernetes manifests: Pods, Jobs and Kubeflow's training jobs, read as requests of the pool.

``manifests`` is the entry point. ``field_tables`` defines for every field whether it is supported, not needed, ignored
with a warning, or rejected; ``reading`` checks a document against such a table. No field is dropped silently.
"""
