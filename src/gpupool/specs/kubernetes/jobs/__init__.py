"""Kinds of Kubernetes objects that become workloads."""
