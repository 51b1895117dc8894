#!/usr/bin/env bash
# Train on the GPUs of this machine: tools/dist_train.sh CONFIG GPUS [OPTIONS OF train.py]
# Several machines: NNODES, NODE_RANK, MASTER_ADDR and PORT, as torchrun takes them.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: $0 CONFIG GPUS [OPTIONS]" >&2
    exit 2
fi
config=$1 gpus=$2
shift 2
torchrun --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" --nproc_per_node="$gpus" \
    --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
    "$(dirname "$0")/train.py" "$config" --launcher pytorch "$@"
