"""The HTTP API: routes call the services and map their results; nothing is decided here.

``app.create_app`` makes the application, ``server.serve`` runs it on a unix socket (and over TLS), ``schemas`` says
what it answers.
"""
