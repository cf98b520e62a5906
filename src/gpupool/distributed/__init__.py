"""How the members of a gang find each other, and what the end of one means for the others.

``telling`` says what each member is told, in the words of its framework: ``torch`` (torchrun's variables),
``tensorflow`` (TF_CONFIG), ``openmpi`` (hosts and remote start). ``outcome`` is the policy. All of that is pure.
``launch``, ``rank_host`` and ``remote_start`` are the programs of MPI's remote start: they run as the user's, with
nothing but the standard library.
"""
