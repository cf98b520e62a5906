"""One module per noun of the API; each route asks a service and maps what it says."""
