"""Alembic's folder: ``env.py`` runs the revisions of ``versions`` on a connection that the caller gives."""
