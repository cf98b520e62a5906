"""Ports: the Protocols that the services own and the adapters (store, fabric, messaging, blobs) implement."""
