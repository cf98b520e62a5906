"""A program on its node: its files, git repository and container, and the messages that start and watch it."""
