"""The commands, one module per family; each has ``register(app)``. ``app.INDEX`` says which module has which command."""
