"""Programs as plain processes of the machine."""
