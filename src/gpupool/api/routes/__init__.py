"""One module per noun of the API; each route calls a service and maps its result."""
