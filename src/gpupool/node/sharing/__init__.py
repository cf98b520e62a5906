"""GPU sharing: programs are limited to their shares of GPUs.

``choose.SharingModes`` selects the mode of a program; each mode implements ``gpupool.node.ports.SharingMode``. A mode
adds variables to the program's environment and reports what it does not enforce.
"""
