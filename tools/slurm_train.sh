#!/usr/bin/env bash
# Train on a Slurm cluster: tools/slurm_train.sh PARTITION JOB_NAME CONFIG [OPTIONS OF train.py]
# GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5) and SRUN_ARGS shape the job.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: $0 PARTITION JOB_NAME CONFIG [OPTIONS]" >&2
    exit 2
fi
partition=$1 job=$2 config=$3
shift 3
gpus=${GPUS:-8}
per_node=${GPUS_PER_NODE:-8}
if [ "$gpus" -lt "$per_node" ]; then per_node=$gpus; fi
# shellcheck disable=SC2086  # several options in one variable
srun --partition="$partition" --job-name="$job" --gres="gpu:$per_node" --ntasks="$gpus" \
    --ntasks-per-node="$per_node" --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 \
    ${SRUN_ARGS:-} \
    python -u "$(dirname "$0")/train.py" "$config" --launcher slurm "$@"
