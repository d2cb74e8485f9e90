#!/usr/bin/env bash
# The data of benchmarks/gpu.sh, prepared on a machine without a GPU: benchmarks/gpu_data.sh --help
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" benchmarks/gpu/packs.py "$@"
