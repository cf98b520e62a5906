"""What a machine has: its processors, memory and GPUs, found by NVML or emulated.

``choose.open_inventory`` picks one; each implements ``gpupool.node.ports.Inventory``. Nothing here hands anything out.
"""
