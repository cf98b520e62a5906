"""Rendezvous of gang members by framework, and the effect of one member's end on the others.

``environment`` selects command and variables by framework: ``torch`` (torchrun's variables), ``tensorflow``
(TF_CONFIG), ``openmpi`` (hosts and remote start). ``outcome`` is the policy. All of these are pure. ``launch``,
``rank_host`` and ``remote_start`` are the programs for MPI's remote start: they run as the user's, with only the
standard library.
"""
