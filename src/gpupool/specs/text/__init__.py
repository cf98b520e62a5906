"""Text from outside: bounded files, YAML with positions, plain JSON, and error messages."""
