#!/usr/bin/env bash
# Commands that need a GPU, the most valuable first.
#
#   benchmarks/gpu.sh             run all steps that fit in the time, in order
#   benchmarks/gpu.sh NAME ...    run the steps with names that start with NAME
#   benchmarks/gpu.sh --list ...  print the commands and run nothing
#
# MINUTES (9) limits a call, ROWS (1) trainings run at once, DATA (data) is the folder of data
# files, OUT (runs/gpu) contains results and logs. The same command continues: finished steps are
# skipped, and a stopped training continues from its checkpoint.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
: "${MINUTES:=9}" "${ROWS:=1}" "${DATA:=data}" "${OUT:=runs/gpu}" "${PYTHON:=python3}"
END=$((SECONDS + 60 * MINUTES)) STATUS=0 CHILD="" LIST=""
if [ "${1:-}" = --list ]; then LIST=yes && shift; fi
NAMES=("$@")
trap 'kill -INT $CHILD 2>/dev/null || true; wait; exit 130' INT TERM HUP

chosen() { # NAME: whether the command line asks for the step
    local name
    for name in "${NAMES[@]}"; do [[ $1 == "$name"* ]] && return; done
    [ ${#NAMES[@]} -eq 0 ]
}

run() { # NAME MINUTES COMMAND ...: run a command until it ends or the time is up
    local name=$1 least=$2 left code=0
    shift 2
    left=$((END - SECONDS))
    if [ -n "$LIST" ]; then echo "$name: $*" && return 1; fi
    if ((left < 60 * least)); then echo "$name: waits for the next call" && return 1; fi
    mkdir -p "$OUT/logs" "$OUT/done"
    timeout --signal=INT --kill-after=20 "$left" "$@" >>"$OUT/logs/$name.log" 2>&1 &
    CHILD=$!
    wait $CHILD || code=$?
    if ((code == 124 || code == 130)); then echo "$name: starts again at the next call" && return 1; fi
    if ((code)); then
        echo "$name: failed with exit code $code, see $OUT/logs/$name.log"
        STATUS=1
        return 1
    fi
    echo "$name: done"
}

step() { # NAME MINUTES COMMAND ...: run a command once; it needs at most the minutes
    if chosen "$1" && [ ! -e "$OUT/done/$1" ]; then
        if run "$@"; then touch "$OUT/done/$1"; fi
    fi
}

rows() { # NAME OPTIONS -- RECIPE ...: train rows of the papers' tables, or continue
    local name=$1 options=()
    shift
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    if ((ROWS > 1)); then options+=(--workers "$ROWS"); else options+=(--threads 1); fi
    chosen "$name" || return 0
    run "$name" 2 "$PYTHON" -m rifflemix reproduce "$@" --data-dir "$DATA" --device cuda \
        --budget $(((END - SECONDS) / 60)) --out "$OUT/$name" "${options[@]}" || true
}

bench() { # NAME MINUTES ARGUMENTS ...
    local name=$1 minutes=$2
    shift 2
    step "bench-$name" "$minutes" "$PYTHON" -m rifflemix bench "$@" --device cuda --max-seconds 5 \
        --out "$OUT/results"
}

script() { # NAME MINUTES SCRIPT ARGUMENTS ...
    step "$1" "$2" "$PYTHON" "benchmarks/$3" "${@:4}" --out "$OUT/results"
}

# Tests of the Triton kernels; most of their time is compilation. Packages of the machine may warn.
PYTEST=("$PYTHON" -m pytest -q -p no:cacheprovider -W default -k triton)
if "$PYTHON" -c "import xdist" 2>/dev/null; then PYTEST+=(-n 8); fi
for folder in permutation statistics sinkhorn recurrence; do
    step "tests-$folder" 8 "${PYTEST[@]}" "tests/ops/$folder"
done
if command -v compute-sanitizer >/dev/null || [ -n "$LIST" ]; then
    for tool in memcheck racecheck initcheck synccheck; do
        step "sanitizer-$tool" 8 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$PYTHON" tests/attack/triton_kernels.py
    done
fi

# Speed.
for tokens in 1024 4096 16384; do
    for dtype in bfloat16 float32; do
        bench "ops-$tokens-$dtype" 4 ops --shape "8,$tokens,512,8" --dtype $dtype
    done
done
script device-times 4 device_times.py
script layer-times 4 layer_times.py
MIXERS=csp,sliceformer,tssa,butterfly,sinkhorn,softmax
bench scaling 6 scaling --mixers $MIXERS --dtype bfloat16
bench scaling-peers 8 scaling --peers
bench models-1024 8 models --shape 32,1024,256,8
bench models-4096 8 models --shape 8,4096,256,8
bench layers 8 layers --shape 1,64,64,4 --shape 8,1024,256,8
bench published 4 published
bench lra 8 lra

# Rows that are not in results/reproduced.csv in full. Fast rows are first.
FAST=(--precision bf16 --compile)
SMALL=(dimension_mixer/table5-TASK-{softmax,butterfly,tssa,csp,sliceformer,sinkhorn}
    dimension_mixer/table5-TASK-{linformer,nystromformer,performer,reformer,flash})
for task in text retrieval image pathfinder; do
    rows "lra-small-$task" "${FAST[@]}" -- "${SMALL[@]/TASK/$task}"
done
for task in listops text retrieval image pathfinder; do
    rows "lra-$task" "${FAST[@]}" -- csp/table4-$task sliceformer/table2-$task-ascending \
        csp/table4-$task-softmax tost/table3-$task-tssa
done
rows cifar10 "${FAST[@]}" -- dimension_mixer/table4-cifar10-p4-l4-{butterfly,dense} \
    csp/table3-cifar10-{csp,vit,shift,sort} tost/table2-cifar10-tost_tiny_16
rows sentiment --precision float32 -- sinkhorn/table6-imdb-word-sortcut-b{8,16,32} \
    sinkhorn/table6-imdb-char-{b8,b16,b32,sortcut-b8,sortcut-b16,sortcut-b32,transformer}
exit $STATUS
