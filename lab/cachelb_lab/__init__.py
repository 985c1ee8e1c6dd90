"""Routing policies in simulated fleets: `sim` runs and compares them, `plots` draws, `analysis` reads records."""
