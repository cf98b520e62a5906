"""The schema's history, one module per revision. They never import the present tables: those will change."""
