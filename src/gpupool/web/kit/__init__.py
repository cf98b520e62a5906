"""Parts that pages share: tables, charts, forms, live updates, the map of the pool."""
