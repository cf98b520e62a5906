"""The pool in the database: users, projects, tokens, nodes, reservations, sessions and join tokens."""
