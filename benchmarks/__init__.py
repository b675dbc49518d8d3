"""Speed, as ratios measured within one run: `python -m benchmarks`."""
