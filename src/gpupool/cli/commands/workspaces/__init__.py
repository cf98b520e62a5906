"""Commands for notebooks, SSH and persistent workspaces, and the commands of Run:ai."""
