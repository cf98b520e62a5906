"""People: users, roles, projects, sign-in and warnings."""
