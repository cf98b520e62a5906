"""The gateway: carries HTTP requests of users to the replicas of services. Imports only ``domain``.

``main`` is the process. ``listener`` accepts connections, ``client_connection`` reads requests, ``exchange`` carries
one request to a replica and its response back, over a ``replica_connection``. ``control`` receives the routing table.
Pure: ``framing``, ``heads``, ``forwarding``, ``credentials``, ``routing``, ``problems``.
"""
