"""The machine and its files: control groups, processes, locks, paths, records, priorities, native libraries."""
