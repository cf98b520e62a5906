"""Programs in containers: engine, volumes, devices, images and cleanup.

``runner`` is the agent's part, ``execution`` the shepherd's. ``probe`` finds podman or docker and their options,
``engine`` stores the result. ``spec`` is the record for a shepherd, ``command`` its command line; ``volumes`` and
``child`` run between fork and exec.
``images`` and ``cleanup`` belong to the agent.
"""
