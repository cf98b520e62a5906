"""Reports as files: comma-separated values, and a page with figures that needs nothing else. Values in, text out."""
