"""The HTTP API: routes call the services and map their results. No decisions are made here.

``app.create_app`` creates the application, ``server.serve`` runs it on a unix socket (and over TLS), ``schemas``
defines the answers.
"""
