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
#SBATCH --no-kill
#SBATCH --open-mode=append

# One task a GPU, without torchrun: it would end at the signal, and with 1 instead of 75.
# The signal goes to every mt-train, 300 seconds before the time is over; each finishes the step, and they save.
set -u
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
tasks=${SLURM_NTASKS_PER_NODE:-4} # a node
restarts=${MT_RESTARTS:-3}        # after failures, within this job
pause=${MT_PAUSE:-10}             # seconds before the first, twice as many before each next
where=()

train() { # When one task has ended, the others get 120 seconds.
    srun --wait=120 "${where[@]}" bash -c '
        export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
        exec mt-train "$@"' mt-train --resume auto "$@"
    code=$?
}

find_nodes() { # the most nodes that are up and whose ranks divide the rows of a step
    local up count
    mapfile -t up < <(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --states=alloc,mix --format=%N | sort -u)
    for ((count = ${#up[@]}; count > 0; count--)); do
        if mt-train --resume auto "$@" --dry-run --nnodes "$count" --nproc-per-node "$tasks" > /dev/null; then
            where=(--nodes="$count" --ntasks=$((count * tasks)) --nodelist="$(IFS=,; echo "${up[*]:0:count}")")
            export MASTER_ADDR=${up[0]}
            return 0
        fi
    done
    echo "error: ${#up[@]} nodes of $SLURM_JOB_NODELIST are up, and the run cannot go on with any number of them" >&2
    return 1
}

train "$@"
for ((number = 1; number <= restarts; number++)); do
    case $code in 0 | 2 | 65 | 75) break ;; esac # done; a wrong command; weights that cannot be trusted; stopped
    sleep "$pause"
    find_nodes "$@" || exit 1
    echo "restart $number of $restarts after code $code: ${where[*]}" >&2
    pause=$((pause * 2))
    train "$@"
done

if [ $code -eq 75 ]; then # stopped, and saved: go on later
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
