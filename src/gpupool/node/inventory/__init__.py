"""Inventories: the CPUs, memory and GPUs of a machine, from NVML or emulated.

``choose.open_inventory`` selects one; each implements ``gpupool.node.ports.Inventory``. Inventories only report.
"""
