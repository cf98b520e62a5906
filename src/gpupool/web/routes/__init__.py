"""One module for each group of pages; ``install.ROUTERS`` lists them."""
