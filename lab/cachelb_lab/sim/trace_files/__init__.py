"""Traces of requests in files."""
