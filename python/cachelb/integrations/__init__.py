"""cachelb inside existing routers and proxies: one module per host, imported where it is used."""
