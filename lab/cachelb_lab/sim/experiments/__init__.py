"""Runs of several policies, seeds and settings, and what follows from them together."""
