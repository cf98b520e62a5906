"""Files by their content on a disk: the same few pieces for whoever sends a folder, keeps it and makes it again.

``scan`` turns a folder into a tree (``domain.trees``), ``ignore`` says what of it stays behind, ``keep`` holds blobs by
their SHA-256, ``walk`` reaches files inside a folder that somebody else may be changing, ``make`` writes a tree out,
``rights`` has it done with a user's rights. Standard library only: the node's agent and the client both load it.
"""
