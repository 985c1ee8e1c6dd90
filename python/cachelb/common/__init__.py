"""Parts that all packages of the library use."""
