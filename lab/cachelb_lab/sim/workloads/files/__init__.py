"""Workloads from and to files."""
