#!/usr/bin/env bash
# gpu_check.sh: builds nibble on a machine with an NVIDIA card, runs every test that needs one and
# measures, and prints one table.
#   tools/gpu_check.sh [--stage NAME]... [--deps DIR] [--build DIR] [--out DIR]
#   --stage   build, ops, sanitize, parity or bench; may be given several times (default: all of them)
#   --deps    a folder of unpacked Debian packages (dpkg -x) for machines without a package registry
#   --build   a build that is already there (bin/nibble, tests/cuda/test_cuda and test_cuda_model); default
#             build/gpu
#   --out     where logs, digests and the table go; default build/gpu_check
# The stages ops and parity leave digests of what the card computed (digest-ops.*.txt: of each case of an op;
# digest-*.json: of a checkpoint's run); those in tests/data/digests, without "digest-" in their names, were made so,
# and the CPU's mirror reproduces them in every test run. A digest that differs from its file fails the stage.
# Each stage takes less than ten minutes. Ends with status 1 when a stage failed.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tools/common.sh"
cd "$root" || exit 1

stages="" deps="" build="$root/build/gpu" out="$root/build/gpu_check"
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || die "expected a value behind \"$1\""
  case "$1" in
    --stage)
      case "$2" in build | ops | sanitize | parity | bench) ;; *) die "--stage: expected build, ops, sanitize, parity or bench, found \"$2\"" ;; esac
      stages="$stages $2" ;;
    --deps) deps=$(cd "$2" && pwd) || die "--deps: expected a folder, found \"$2\"" ;;
    --build) build="$2" ;;
    --out) out="$2" ;;
    *) die "expected --stage, --deps, --build or --out, found \"$1\"" ;;
  esac
  shift 2
done
[ -n "$stages" ] || stages="build ops sanitize parity bench"
for folder in "$out" "$build"; do
  { mkdir -p "$folder" && [ -w "$folder" ]; } 2>/dev/null || die "--out, --build: expected folders to write to, found \"$folder\""
done
out=$(cd "$out" && pwd) build=$(cd "$build" && pwd)

if [ -n "$deps" ]; then
  libs="$deps/usr/lib/$(uname -m)-linux-gnu"
  export CMAKE_PREFIX_PATH="$deps/usr" CPATH="$deps/usr/include${CPATH:+:$CPATH}"
  export LIBRARY_PATH="$libs${LIBRARY_PATH:+:$LIBRARY_PATH}" LD_LIBRARY_PATH="$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

nibble="$build/bin/nibble" data="$root/tests/data"
export NIBBLE_TEST_DATA="$data"
# CUPTI, which traces need, lies beside the toolkit.
for cuda in "${CUDA_HOME:-/usr/local/cuda}"/lib64 "${CUDA_HOME:-/usr/local/cuda}"/extras/CUPTI/lib64; do
  [ -d "$cuda" ] && export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cuda"
done
failed=0
needs_card() { case " $stages " in *" ops "* | *" sanitize "* | *" parity "* | *" bench "*) true ;; *) false ;; esac; }
if needs_card; then
  have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q . || die "expected an NVIDIA card, found none (nvidia-smi -L)"
  [ -d "$data/model" ] || die "expected the tests' data, found no $data/model"
fi
: >"$out/table.txt"

row() { printf '%-10s %-34s %-8s %6s s  %s\n' "$1" "$2" "$3" "$4" "$5" >>"$out/table.txt"; }

# step STAGE NAME COMMAND...: runs it into a log of its own and writes a row; the last line that the
# log's `summary` pattern finds stands behind it.
profiles="sm90 sm120 sm70"
summary='PASSED|FAILED|SUMMARY|^equal|^differs|^against|within|error'
step() {
  local stage="$1" name="$2" started=$SECONDS verdict=ok skipped
  shift 2
  log="$out/$stage-$(echo "$name" | tr -c 'a-zA-Z0-9\n' '_').log"
  say "[$stage] $name"
  if [ "$(type -t "$1")" = file ]; then set -- timeout 570 "$@"; fi
  "$@" >"$log" 2>&1 || { verdict=FAILED; failed=1; tail -n 25 "$log"; }
  # A test that skips has shown nothing: its number stands in the row.
  skipped=$(grep -cE '^\[  SKIPPED \] .*\(' "$log")
  if grep -q '^Skipped$' "$log" && [ "$skipped" -eq 0 ]; then skipped=$(grep -c '^Skipped$' "$log"); fi
  [ "$skipped" -eq 0 ] || name="$name ($skipped skipped)"
  row "$stage" "$name" "$verdict" $((SECONDS - started)) "$(grep -E "$summary" "$log" | tail -n 1 | cut -c1-120)"
}

# Tests dealt to several processes: most of their time goes to reference results on the host. What they share, the
# card, is then never theirs alone, and no bit may depend on it.
sharded() {
  local shards=$(($(jobs) / 2)) i status=0 passed=0 pids=()
  [ "$shards" -ge 1 ] || shards=1
  [ "$shards" -le 8 ] || shards=8
  for ((i = 0; i < shards; i++)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i timeout 570 "$@" >"$out/shard-$i.log" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  for ((i = 0; i < shards; i++)); do
    cat "$out/shard-$i.log"
    passed=$((passed + $(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$out/shard-$i.log" | tail -n 1)))
    rm -f "$out/shard-$i.log"
  done
  echo "PASSED $passed tests in $shards processes, exit status $status"
  return "$status"
}

build_all() {
  cmake -S "$root" -B "$build" -G "$(generator)" -DCMAKE_BUILD_TYPE=Release -DNIBBLE_CUDA=ON \
    -DNIBBLE_CUDA_ARCHITECTURES="${NIBBLE_CUDA_ARCHITECTURES:-90a}" -DNIBBLE_CPU_ISAS="avx2;avx512" &&
    cmake --build "$build" --parallel "$(jobs)" --target nibble_cli test_cuda test_cuda_model
}

# Those that are quick under tools that make kernels 10 to 100 times slower; together they launch every op.
small='LinearSmall*:*small_17_*:*small_1_*:*CudaRows*/3:*CudaRows*/17:*CudaPack*/3:*Empty*:*Counts*:*EmbedBits*:*CudaGroupedTiles*nvfp4_row*_1'

for stage in $stages; do
  case "$stage" in
    build) step build "nibble and its CUDA tests" build_all ;;
    ops)
      rm -f "$out"/digest-ops.*.txt
      step ops "ops, all cases" sharded env NIBBLE_DIGESTS_OUT="$out" "$build/tests/cuda/test_cuda" --gtest_brief=1
      for name in ops.linear.sm70 ops.linear.sm90 ops.linear.sm120 ops.sequence ops.rows; do
        step ops "check $name.txt" diff "$data/digests/$name.txt" "$out/digest-$name.txt"
      done
      step ops "the checkpoint" "$build/tests/cuda/test_cuda_model" --gtest_brief=1 ;;
    sanitize)
      for tool in memcheck racecheck initcheck; do
        step sanitize "$tool, ops" compute-sanitizer --tool "$tool" --error-exitcode 1 \
          "$build/tests/cuda/test_cuda" --gtest_brief=1 --gtest_filter="$small"
        step sanitize "$tool, the checkpoint" compute-sanitizer --tool "$tool" --error-exitcode 1 \
          "$build/tests/cuda/test_cuda_model" --gtest_brief=1 --gtest_filter='*WritesTheText'
      done ;;
    parity)
      for checkpoint in hf-nvfp4-ct hf-nvfp4-modelopt; do
        for profile in $profiles; do
          modes="a16 declared"
          [ "$profile" != sm90 ] || modes="$modes a8"
          for activations in $modes; do
            step parity "$checkpoint $profile $activations" "$nibble" parity "$data/model/$checkpoint" \
              --a "cpu:mirror=$profile" --b "cuda:arch-path=$profile" --activations $activations
            name="$checkpoint.$activations.$profile.json"
            # in its file only when it is whole
            step parity "digest $name" "$nibble" parity "$data/model/$checkpoint" --a "cuda:arch-path=$profile" \
              --activations $activations --digest -q
            cp "$log" "$out/digest-$name"
            if [ -f "$data/digests/$name" ]; then
              step parity "check $name" "$nibble" parity "$data/model/$checkpoint" --a "cuda:arch-path=$profile" \
                --check "$data/digests/$name"
            fi
          done
        done
      done
      for profile in sm90 sm120; do
        step parity "keys and values in fp8 $profile" "$nibble" parity "$data/model/hf-nvfp4-ct" \
          --a "cpu:mirror=$profile" --b "cuda:arch-path=$profile" --kv-cache-dtype fp8
        name="hf-nvfp4-ct.a16-kv-fp8.$profile.json"
        step parity "digest $name" "$nibble" parity "$data/model/hf-nvfp4-ct" --a "cuda:arch-path=$profile" \
          --kv-cache-dtype fp8 --digest -q
        cp "$log" "$out/digest-$name"
        step parity "check $name" "$nibble" parity "$data/model/hf-nvfp4-ct" --a "cuda:arch-path=$profile" \
          --check "$data/digests/$name"
      done
      for profile in sm90 sm120; do
        step parity "fused packs $profile" "$nibble" parity "$data/model/hf-nvfp4-ct" \
          --a "cpu:mirror=$profile,fused-pack=on" --b "cuda:arch-path=$profile,fused-pack=on" --activations declared
      done
      for profile in sm90 sm120; do
        for activations in a16 declared; do
          step parity "fused swiglu $profile $activations" "$nibble" parity "$data/model/hf-nvfp4-ct" \
            --a "cpu:mirror=$profile" --b "cuda:arch-path=$profile,fused-swiglu=on" --activations $activations
        done
      done
      for profile in sm90 sm120; do
        step parity "fused delta $profile" "$nibble" parity "$data/model/hf-nvfp4-ct" \
          --a "cpu:mirror=$profile" --b "cuda:arch-path=$profile,fused-delta=on"
        step parity "fused delta, packed norms $profile" "$nibble" parity "$data/model/hf-nvfp4-ct" \
          --a "cpu:mirror=$profile,fused-pack=on" --b "cuda:arch-path=$profile,fused-pack=on,fused-delta=on" \
          --activations declared
        step parity "fused delta, qwen3_next $profile" "$nibble" parity "$data/archs/qwen3_next" \
          --a "cpu:mirror=$profile" --b "cuda:arch-path=$profile,fused-delta=on"
      done
      for profile in sm90 sm120; do
        step parity "fused add and norm, fused gate $profile" "$nibble" parity "$data/model/hf-nvfp4-ct" \
          --a "cpu:mirror=$profile" --b "cuda:arch-path=$profile,fused-add-norm=on,fused-gate=on"
        step parity "fused add and norm, packed norms $profile" "$nibble" parity "$data/model/hf-nvfp4-ct" \
          --a "cpu:mirror=$profile,fused-pack=on" --b "cuda:arch-path=$profile,fused-pack=on,fused-add-norm=on" \
          --activations declared
      done
      step parity "fused add and norm sm70" "$nibble" parity "$data/model/hf-nvfp4-ct" \
        --a cpu:mirror=sm70 --b cuda:arch-path=sm70,fused-add-norm=on
      for checkpoint in mixed/hf-mixed-ct mixed/hf-mixed-modelopt mixed/hf-fp8-block; do
        step parity "fused swiglu, $checkpoint" "$nibble" parity "$data/$checkpoint" \
          --a cpu:mirror=sm90 --b cuda:arch-path=sm90,fused-swiglu=on
      done
      for checkpoint in archs/qwen3 archs/llama archs/qwen3_next archs/qwen3_5_moe-nvfp4; do
        for profile in $profiles; do
          step parity "$checkpoint $profile" "$nibble" parity "$data/$checkpoint" \
            --a "cpu:mirror=$profile" --b "cuda:arch-path=$profile"
        done
      done
      step parity "joined linears" "$nibble" parity "$data/model/hf-nvfp4-ct" --a cpu:mirror=sm90 --b cuda:fused-linears=on
      # of a text that the model's own sampling makes, the same everywhere
      "$nibble" generate "$data/model/hf-nvfp4-ct" -p "The capital of France is" -n 1500 --temperature 1 --seed 1 \
        --ignore-stop-tokens --device cpu -q >"$out/text.txt"
      for activations in a16 declared a8; do
        step parity "perplexity $activations, card and f32" "$nibble" perplexity "$data/model/hf-nvfp4-ct" -f "$out/text.txt" \
          --device cuda --activations $activations --against cpu
        step parity "perplexity $activations, card and mirror" "$nibble" perplexity "$data/model/hf-nvfp4-ct" \
          -f "$out/text.txt" --device cuda --activations $activations --against cpu:mirror=sm90 --against-activations $activations
      done
      step parity "cuda against float64" "$nibble" parity "$data/model/hf-nvfp4-ct" --a cuda --against-oracle ;;
    bench)
      for device in cuda cuda:graphs=off; do
        step bench "shipped checkpoint, $device" "$nibble" bench "$data/model/hf-nvfp4-ct" --device "$device" \
          -p 512,2048 -n 64 -b 1,8 -r 5 -o md
      done
      step bench "27B shapes, 8 layers" "$nibble" bench --synthetic qwen3_5-27b --layers 8 --device cuda -p 2048 \
        -n 32 -b 1,8 -d 0 -r 3 -o md --trace "$out/trace.json"
      # A fusion's gain is the difference between the first of these and its own (docs/fusions.md).
      fusion() {
        step bench "8 layers, $1" "$nibble" bench --synthetic qwen3_5-27b --layers 8 --device "$2" -p 2048 -n 64 -b 1,16 \
          -d 0 -r 5 -o md --activations "$3"
      }
      fusion "all fusions" cuda a16
      for option in fused-swiglu fused-delta fused-linears fused-add-norm fused-gate; do fusion "$option off" "cuda:$option=off" a16; done
      fusion "all fusions, a8" cuda a8
      fusion "fused-pack off, a8" cuda:fused-pack=off a8
      step bench "attention, prompts" "$nibble" bench ops --op attention --device cuda -t 512,2048,8192,16384 -o md
      step bench "attention, steps of decoding" "$nibble" bench ops --op attention --device cuda \
        --depth 4096,16384,131072 --sequences 1,8,64 -o md
      if python3 -c 'import torch' 2>/dev/null; then
        step bench "attention in PyTorch, prompts" tools/peer_attention.py -t 512,2048,8192,16384
        step bench "attention in PyTorch, decoding" tools/peer_attention.py --depth 4096,16384,131072 --sequences 1,8,64
      else
        row bench "attention in PyTorch" skipped 0 "the Python package torch is not there"
      fi
      step bench "packing behind norms and SwiGLU" "$nibble" bench ops --op pack --device cuda -t 1,8,64,2048 -o md
      step bench "experts" "$nibble" bench ops --op grouped --device cuda --formats nvfp4 -t 1,8,64,512,2048 -o md
      step bench "gated delta rule" "$nibble" bench ops --op delta --device cuda -t 1,512,2048,8192,16384,32768 -o md
      step bench "gated delta rule, sequences together" "$nibble" bench ops --op delta --device cuda -t 1,8192 \
        --sequences 4 -o md
      step bench "gated delta rule, steps of sequences together" "$nibble" bench ops --op delta --device cuda -t 1 \
        --sequences 8,64 -o md
      step bench "gated delta rule, saved" "$nibble" bench ops --op delta --device cuda -t 512,2048 --save "$out/delta" -o md
      if python3 -c 'import fla, torch' 2>/dev/null; then
        step bench "flash-linear-attention" tools/peer_fla.py --saved "$out/delta/delta-16-48-1x512.safetensors" \
          --saved "$out/delta/delta-16-48-1x2048.safetensors"
      else
        row bench "flash-linear-attention" skipped 0 "the Python packages flash-linear-attention and torch are not there"
      fi
      step bench "linear, mode a8" "$nibble" bench ops --op linear --device cuda --formats a8 -t 8,1024,2048,4096 -o md
      step bench "gate, up and SwiGLU as one" "$nibble" bench ops --op gate-up --device cuda -t 1,8,64,2048 -o md
      step bench "linear beside cuBLAS" "$nibble" bench ops --op linear --device cuda -o md ;;
  esac
done

grep -h -E '^\|' "$out"/bench-*.log 2>/dev/null
echo
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
cat "$out/table.txt"
exit "$failed"
