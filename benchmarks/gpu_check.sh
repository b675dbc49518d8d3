#!/usr/bin/env bash
# One call on a machine with a GPU: tests marked gpu, then model-steps per second of stacks on CPU and GPU.
# Needs torch and the package's other dependencies installed; writes benchmarks/results/gpu.json.
set -euo pipefail
cd "$(dirname "$0")/.."
python -m pytest -m gpu tests || test $? -eq 5
python -m benchmarks.stacks --device cuda --output "${OUT:-benchmarks/results}/gpu.json"
