"""Tests that other packages can run against their extensions."""
