"""Jupyter kernels and servers of JupyterHub as workloads of a pool.

``provisioner`` starts, interrupts and restarts a kernel; ``watch`` follows all kernels of a process with one event
stream; ``records`` keeps what a later Jupyter Server needs to take over a kernel, which ``extension`` does;
``kernel_spec`` writes the files that make kernels appear in Jupyter. Requires ``gpupool[jupyter]``, except
``kernel_spec``. ``spawner`` starts the servers of a JupyterHub in the pool; it requires ``gpupool[jupyterhub]``.
"""
