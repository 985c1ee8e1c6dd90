"""The APIs that fake workers answer."""
