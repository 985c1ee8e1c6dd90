"""cachelb inside routers and proxies that people already run: one module per host, which is imported where it is used."""
