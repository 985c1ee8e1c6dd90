"""Policies in front of real engines on GPUs: `benches/gpu/engines.sh`, then `python -m benches.gpu`."""
