"""Programs that run in jobs. They need only Python: nodes need not have gpupool in the Python of the job."""
