"""Conversion of user input to domain values: command-line options, JSON requests, YAML job files, sweeps.

``request`` is the entry point: ``parse_request`` and ``to_workload``. ``jobfile`` reads files, ``options`` reads
command-line values (and imports nothing heavy), ``schema`` publishes the format. Invalid input becomes a
``GpupoolError`` that names the field.
"""
