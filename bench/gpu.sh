#!/usr/bin/env bash
# W1, W2, W5 and prompts a second on a GPU, in under eight minutes: bench/gpu.sh [--tiny] [--device cpu]
# First the same with a small float32 model, whose numbers must agree closely; then the real shape in bfloat16.
# PYTHON (python3) must have the package's dependencies; the table goes to $OUT (here by default).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
python=${PYTHON:-python3}
out=${OUT:-.}
if [[ " $* " != *" --tiny "* ]]; then
  "$python" -m bench.gpu --tiny "$@" --out "$out/bench-gpu-tiny.md"
fi
exec "$python" -m bench.gpu "$@" --out "$out/bench-gpu.md"
