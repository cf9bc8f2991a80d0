#!/bin/bash
# A run that takes as many jobs of SLURM as it needs: sbatch scripts/slurm.sh --data=input.txt --steps=100000 --out=run1
# docs/cluster.md
#SBATCH --job-name=gated --gpus=1 --cpus-per-task=8 --mem=32G
#SBATCH --time=04:00:00 --signal=B:USR1@300
#SBATCH --requeue --open-mode=append

[ -n "${SLURM_JOB_ID:-}" ] || {
  echo "slurm: this is no job of SLURM: sbatch scripts/slurm.sh FLAGS, or without SLURM ./train FLAGS --resume" >&2
  exit 1
}

# Five minutes before the limit SLURM sends SIGUSR1 to this script: the run saves and ends, and the job is queued again.
queue_again() {
  scancel --signal=TERM "$SLURM_JOB_ID" # to the run; srun itself would end it at once
  wait "$run"
  code=$?
  [ "$code" -eq 143 ] || exit "$code" # it ended by itself
  scontrol requeue "$SLURM_JOB_ID"
  exit
}
trap queue_again USR1

srun ./train "$@" --resume &
run=$!
wait "$run"
