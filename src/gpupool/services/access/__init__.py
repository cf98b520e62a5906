"""Access: users, projects, tokens, sessions and permissions."""
