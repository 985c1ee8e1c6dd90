"""cachelb inside routers and proxies that people already run: one module per host, imported where it is used."""
