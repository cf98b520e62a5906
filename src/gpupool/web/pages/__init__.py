"""The pages of the dashboard: one folder for each page, with its routes and its content."""
