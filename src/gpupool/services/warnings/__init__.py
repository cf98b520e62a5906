"""Warnings by mail and webhook: when they are sent, their text, and delivery in the background."""
