#!/bin/bash
# A run on several nodes that queues itself again until it is complete (docs/scale_out.md):
#   sbatch examples/slurm.sh --config run.yaml --output /shared/runs/long
#SBATCH --job-name=mt-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append

# One task a GPU, without torchrun: it would end at the signal, and with 1 instead of 75.
# The signal goes to every mt-train, 300 seconds before the time is over; each finishes the step, and they save.
set -u
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# When one task has ended, the others get 120 seconds.
srun --wait=120 bash -c '
    export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
    exec mt-train "$@"' mt-train --resume auto "$@"
code=$?

if [ $code -eq 75 ]; then # stopped, and saved: go on later
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
