"""Warnings by mail and webhook: when they are due, what they say, and sending them without holding up anything."""
