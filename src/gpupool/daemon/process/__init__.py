"""The pool's own processes: starting, supervising and stopping them."""
