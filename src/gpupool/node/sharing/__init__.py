"""How a program is kept to its shares of GPUs.

``choose.sharing_for`` picks the mode of a program; each implements ``gpupool.node.ports.SharingMode``. A mode adds
variables to the program's environment and says in words what it does not enforce.
"""
