"""Files addressed by content, used by clients, heads and nodes to send and store folders.

``scan`` turns a folder into a tree (``domain.work.program.file_tree``), ``ignore`` selects the files to leave out.
``blob_store`` keeps blobs by SHA-256, ``safe_open`` opens files in a folder that others may change. ``materialize``
writes a tree to a folder, ``run_as_user`` does so with a user's rights. Standard library only: the node's agent and the
client both load it.
"""
