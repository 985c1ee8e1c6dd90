"""Published benchmarks, simulated with one set of constants."""
