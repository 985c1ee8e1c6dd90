"""A gateway and an endpoint picker around a router, their configuration, sources of workers, and checks of engines."""
