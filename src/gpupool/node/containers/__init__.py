"""Programs in containers: the engine and what it needs here, volumes, devices, images, and what is left of them.

``engine`` is what was found out of podman or docker, ``probe`` finds it out, ``box`` is what a shepherd is told,
``command`` the command line made of it, ``volumes`` and ``child`` what happens between fork and exec, ``inside``
tells a container's processes from the engine's, ``images`` and ``leftovers`` are the agent's.
"""
