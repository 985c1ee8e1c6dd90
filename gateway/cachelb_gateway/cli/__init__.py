"""The commands `cachelb config`, `doctor`, `serve` and `watch`."""
