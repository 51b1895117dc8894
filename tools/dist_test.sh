#!/usr/bin/env bash
# Evaluate on the GPUs of this machine: tools/dist_test.sh CONFIG CHECKPOINT GPUS [OPTIONS OF test.py]
# Several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT, as torchrun takes them.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 CONFIG CHECKPOINT GPUS [OPTIONS]" >&2
    exit 2
fi
config=$1 checkpoint=$2 gpus=$3
shift 3
torchrun --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$gpus" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/test.py" "$config" "$checkpoint" --launcher pytorch "$@"
