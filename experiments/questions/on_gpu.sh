#!/bin/sh
# Trains on one GPU and 16 cores, and puts at most eight files under OUT:
#   sh experiments/questions/on_gpu.sh OUT RUNS SECONDS
# RUNS is a folder that stays; the same command goes on there. The GPU trains width or scale, then
# equal length; beside it the GPU has addition and pilots on PrOntoQA, and the cores have SCAN.
OUT=$1 RUNS=$2 END=$(($(date +%s) + $3))
E7=experiments/complexity_control T=$RUNS/tables
WIDTH="experiments/questions/width_or_scale.py $T --runs $RUNS/width"
LENGTH="experiments/neurips/equal_length.py $T --runs $RUNS"
export PYTHONPATH="src:experiments:$PYTHONPATH" OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
mkdir -p "$T"

run() { # run LOG ARGUMENTS...: python until the time is over
    log=$1 && shift
    left=$((END - $(date +%s)))
    [ $left -gt 3 ] && timeout -s TERM $left python3 "$@" >> "$T/$log.log" 2>&1
}

(
    run width $WIDTH --train-only
    run width-measured $WIDTH &
    run large $LENGTH/large --only 0.35 0.5 --train-only
    run large-measured $LENGTH/large --only 0.35 0.5 &
    run small $LENGTH/small --only 0.8 0.95 --train-only
    run small-measured $LENGTH/small --only 0.8 0.95
    wait
) &
run addition $E7/fig7_runs.py "$T" addition --runs "$RUNS/addition" --device cuda --batch 0 &
run scan $E7/fig7_runs.py "$T" scan --runs "$RUNS/scan" --workers 10 &
for pilot in signed-batch-128 three-hops-batch-128; do
    run $pilot $E7/prontoqa_learned.py "$T" $pilot --device cuda &
done
wait
cp "$T"/*.safetensors "$OUT"
tar -czf "$OUT/tables.tar.gz" -C "$T" --exclude runs --exclude '*.safetensors' .
tail -n 3 "$T"/*.log
