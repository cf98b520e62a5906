"""The HTTP door of the pool: routes ask the services and map what they say; nothing is decided here.

``app.create_app`` makes the application, ``server.serve`` runs it on a unix socket (and over TLS), ``schemas`` says
what it answers.
"""
