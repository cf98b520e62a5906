"""What people write, turned into domain values: command-line options, JSON requests, YAML job files, sweeps.

``request`` is the front door: ``parse_request`` and ``to_workload``. ``jobfile`` reads files, ``options`` reads
command-line values (and imports nothing heavy), ``schema`` publishes the format. Whatever is wrong in the input
becomes a ``GpupoolError`` that names the field.
"""
