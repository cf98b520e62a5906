"""What the pool does: submit, place, start, watch, stop, account.

Services speak to the outside only through the Protocols of ``ports``; the composition root hands in real ones.
"""
