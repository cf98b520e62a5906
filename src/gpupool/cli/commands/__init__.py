"""The commands, one module per family, each with ``register(app)``; ``index`` says which module has which command."""
