#!/usr/bin/env bash
# One call on a machine with a GPU and without network, under six minutes:
#   OUT=folder PYTHON=python3 benchmarks/gpu_check.sh
# Needs the package's dependencies and pytest installed. Every piece has a time limit and fails for itself: what
# it has measured by then is in $OUT (benchmarks/results if not set). The exit status counts the pieces that failed.
# DEVICE=cpu QUICK=--quick walks through the same pieces where there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3} device=${DEVICE:-cuda} quick=${QUICK:-} out=${OUT:-benchmarks/results}
failed=0

piece() { # piece SECONDS COMMAND ..
  local seconds=$1 status
  shift
  echo "+ $*"
  timeout --kill-after=5 "$seconds" "$@"
  status=$?
  if [ "$status" -ne 0 ]; then
    echo "FAILED ($status; 124 is out of time): $*"
    failed=$((failed + 1))
  fi
}

measure() { # measure SECONDS NAME
  piece "$1" "$python" -m benchmarks "$2" --device "$device" --out "$out" $quick
}

piece 50 "$python" -m pytest -q -m gpu tests
measure 30 gpu-agreement
measure 25 gpu-products
measure 80 gpu-ensembles
measure 115 gpu-laws
measure 50 gpu-relation
exit "$failed"
