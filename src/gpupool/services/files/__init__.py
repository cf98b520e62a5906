"""Workspace folders: files from users are stored as blobs and sent to nodes; files of workloads can be read there."""
