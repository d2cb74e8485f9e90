#!/usr/bin/env bash
# Everything that only a GPU can settle, in stages; benchmarks/README.md says how, --help the options.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" benchmarks/gpu/run.py "$@"
