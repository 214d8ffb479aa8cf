#!/bin/bash
# A token cache by an array of jobs (docs/data.md): each encodes its part, then one makes a cache of them.
#   parts=$(sbatch --parsable --array=0-63 examples/slurm_build.sh --config run.yaml --data.cache /shared/tokens)
#   sbatch --dependency=afterok:$parts examples/slurm_build.sh --config run.yaml --data.cache /shared/tokens
#SBATCH --job-name=mt-data
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --requeue

# A part that was killed or timed out is queued again by SLURM, or by you with --array=NUMBERS: what it had encoded is kept.
# The number of parts stays that of the first array: --export=ALL,PARTS=64. Without an array this is the job that finishes.
set -u
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    set -- --part "$SLURM_ARRAY_TASK_ID/${PARTS:-$((SLURM_ARRAY_TASK_MAX + 1))}" "$@"
else
    set -- --finish "$@"
fi
exec mt-data build --data.workers "${SLURM_CPUS_PER_TASK:-1}" "$@"
