"""Projects and departments."""
