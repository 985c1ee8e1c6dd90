"""The endpoint picker in Python that the native one replaces: its model."""
