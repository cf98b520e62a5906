"""Kubernetes' words: manifests of Pods, Jobs and Kubeflow's training jobs, read as requests of the pool.

``manifests`` is the front door. ``tables`` says of every field whether it is honoured, holds here anyway, is warned of
or refused; ``reading`` walks a document by such a table. Nothing of a manifest is dropped without a word.
"""
