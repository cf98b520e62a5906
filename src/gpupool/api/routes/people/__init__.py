"""Routes for users, projects, fairness, logins, audit and usage."""
