#!/bin/sh
# Starts one vLLM per GPU of this machine, with KV events, and waits until all answer; ctrl-c ends them.
#
#     benches/gpu/engines.sh MODEL [ENGINES] [further arguments of vllm serve]
#     benches/gpu/engines.sh MODEL 4 --gpu-memory-utilization 0.22 --kv-cache-memory-bytes 8G     # four share one GPU
#
# Engine N answers at port 8000+N and publishes at 5600+10*N, replays one above. Then, in another shell of the checkout:
#
#     python -m benches.gpu --engines ENGINES --vocabulary 32000
set -eu
model=${1:?usage: benches/gpu/engines.sh MODEL [ENGINES] [ARGUMENTS]}
gpus=$(nvidia-smi --list-gpus | wc -l)
engines=${2:-$gpus}
shift; [ $# -eq 0 ] || shift
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
trap 'exit 130' INT TERM
n=0
while [ "$n" -lt "$engines" ]; do
    events=$((5600 + 10 * n))
    config="{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \"tcp://*:$events\", \"replay_endpoint\": \"tcp://*:$((events + 1))\"}"
    # The development mode has /reset_prefix_cache: episodes begin with empty caches.
    CUDA_VISIBLE_DEVICES=$((n % gpus)) VLLM_SERVER_DEV_MODE=1 vllm serve "$model" --host 127.0.0.1 --port $((8000 + n)) \
        --served-model-name m --block-size 16 --enable-prefix-caching --enable-prompt-tokens-details \
        --kv-events-config "$config" "$@" > "engine-$n.log" 2>&1 &
    n=$((n + 1))
done
n=0
while [ "$n" -lt "$engines" ]; do
    until curl --silent --fail "http://127.0.0.1:$((8000 + n))/health" > /dev/null; do
        [ -n "$(jobs -r)" ] || { echo "no engine runs any more; see engine-$n.log" >&2; exit 1; }
        sleep 2
    done
    echo "engine $n is ready"
    n=$((n + 1))
done
wait
