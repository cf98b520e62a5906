"""What pages show, as plain values made from the services; one module for each noun."""
