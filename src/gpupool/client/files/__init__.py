"""Files and ports of programs: upload, download and port forwarding."""
