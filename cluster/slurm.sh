#!/usr/bin/env bash
#SBATCH --job-name=nbsr
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --output=nbsr-%j.log
# A Ray cluster inside one allocation: head and driver on its first node, a worker on each other one, and all of it gone
# when the study ends. Requeued or submitted again, it goes on from the store.
#
#   sbatch cluster/slurm.sh STUDY [options of nbsr run]        (GPUs: sbatch --gpus-per-node=1 ...)
#   NBSR_DRY_RUN=1 cluster/slurm.sh STUDY                      print what would be started, start nothing
#
# NBSR_HOME must be on a disk that all nodes share. NBSR_PYTHON: interpreter with nbsr in it.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: sbatch cluster/slurm.sh STUDY [options of nbsr run]" >&2; exit 2; }
python=${NBSR_PYTHON:-$(command -v python3)}
export NBSR_PYTHON=$python NBSR_HOME=${NBSR_HOME:-$PWD/.nbsr} RAY_USAGE_STATS_ENABLED=0
run() { if [ -n "${NBSR_DRY_RUN:-}" ]; then printf '%q ' "$@"; echo; else "$@"; fi; }

mapfile -t nodes < <(scontrol show hostnames "${SLURM_JOB_NODELIST:?not inside a Slurm allocation}")
head=${nodes[0]}
# Several allocations may share a node: each takes ports of its own.
port=$((20000 + SLURM_JOB_ID % 20000))
gpus=(); [ -z "${SLURM_GPUS_ON_NODE:-}" ] || gpus=(--num-gpus="$SLURM_GPUS_ON_NODE")
ray=("$python" -m ray.scripts.scripts start --block --disable-usage-stats --num-cpus="${SLURM_CPUS_PER_TASK:-1}" "${gpus[@]}")

# Whoever shares these nodes must not reach our Ray: a token for this allocation alone, in a file that only we can read.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$NBSR_HOME/slurm-$SLURM_JOB_ID.token
if [ -z "${NBSR_DRY_RUN:-}" ]; then
    mkdir -p "$NBSR_HOME"
    (umask 077; "$python" -c 'import secrets; print(secrets.token_hex(32), end="")' > "$RAY_AUTH_TOKEN_PATH")
    trap 'rm -f "$RAY_AUTH_TOKEN_PATH"; kill $(jobs -p) 2>/dev/null || true' EXIT
fi

step=(srun --overlap --nodes=1 --ntasks=1)
background() { if [ -n "${NBSR_DRY_RUN:-}" ]; then run "$@"; else "$@" & fi; }

background "${step[@]}" --nodelist="$head" \
    "${ray[@]}" --head --port="$port" --dashboard-host=127.0.0.1 --dashboard-port=$((port + 1)) \
    --temp-dir="/tmp/nbsr-ray-$SLURM_JOB_ID"
if [ -z "${NBSR_DRY_RUN:-}" ]; then
    for try in $(seq 60); do
        "$python" -m ray.scripts.scripts health-check --address "$head:$port" && break
        [ "$try" -lt 60 ] || { echo "the head on $head does not answer" >&2; exit 1; }
        sleep 3
    done
fi
for node in "${nodes[@]:1}"; do
    background "${step[@]}" --nodelist="$node" "${ray[@]}" --address="$head:$port"
done
run "${step[@]}" --nodelist="$head" \
    "$python" -m nbsr_platform.cli run --address "$head:$port" --home "$NBSR_HOME" "$@"
