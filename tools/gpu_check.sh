#!/usr/bin/env bash
# gpu_check.sh: builds nibble on a machine with an NVIDIA card, runs every test that needs one and
# measures, and prints one table.
#   tools/gpu_check.sh [--stage NAME]... [--deps DIR] [--build DIR] [--out DIR]
#   --stage   build, ops, sanitize, parity or bench; may be given several times (default: all of them)
#   --deps    a folder of unpacked Debian packages (dpkg -x) for machines without a package registry
#   --build   a build that is already there (with bin/nibble and tests/cuda/test_cuda); default build/gpu
#   --out     where logs and the table go; default build/gpu_check
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
mkdir -p "$out" "$build"
out=$(cd "$out" && pwd) build=$(cd "$build" && pwd)

if [ -n "$deps" ]; then
  libs="$deps/usr/lib/$(uname -m)-linux-gnu"
  export CMAKE_PREFIX_PATH="$deps/usr" CPATH="$deps/usr/include${CPATH:+:$CPATH}"
  export LIBRARY_PATH="$libs${LIBRARY_PATH:+:$LIBRARY_PATH}" LD_LIBRARY_PATH="$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

nibble="$build/bin/nibble" tests="$build/tests/cuda/test_cuda"
model="$root/tests/data/model/hf-nvfp4-ct"
failed=0
: >"$out/table.txt"

row() { printf '%-10s %-34s %-8s %6s s  %s\n' "$1" "$2" "$3" "$4" "$5" >>"$out/table.txt"; }

# step STAGE NAME COMMAND...: runs it into a log of its own and writes a row; the last line that the
# log's `summary` pattern finds stands behind it.
summary='^(\[  (PASSED|FAILED) .*|.*ERROR SUMMARY.*|.*equal.*|.*differ.*)$'
step() {
  local stage="$1" name="$2" log started=$SECONDS verdict=ok
  shift 2
  log="$out/$stage-$(echo "$name" | tr -c 'a-zA-Z0-9\n' '_').log"
  say "[$stage] $name"
  timeout 570 "$@" >"$log" 2>&1 || { verdict=FAILED; failed=1; tail -n 25 "$log"; }
  row "$stage" "$name" "$verdict" $((SECONDS - started)) "$(grep -E "$summary" "$log" | tail -n 1 | cut -c1-120)"
}

build_all() {
  cmake -S "$root" -B "$build" -G "$(generator)" -DCMAKE_BUILD_TYPE=Release -DNIBBLE_CUDA=ON \
    -DNIBBLE_CUDA_ARCHITECTURES="${NIBBLE_CUDA_ARCHITECTURES:-90a}" -DNIBBLE_CPU_ISAS="avx2;avx512" &&
    cmake --build "$build" --parallel "$(jobs)" --target nibble_cli test_cuda
}

for stage in $stages; do
  case "$stage" in
    build) step build "nibble and its CUDA tests" build_all ;;
    ops) step ops "all cases" "$tests" --gtest_brief=1 ;;
    sanitize)
      # The small cases: the tools make kernels 10 to 100 times slower.
      for tool in memcheck racecheck initcheck; do
        NIBBLE_CASES=small step sanitize "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$tests" \
          --gtest_brief=1 --gtest_filter='*Small*:*small*'
      done ;;
    parity)
      for kind in model/hf-nvfp4-ct model/hf-nvfp4-modelopt model/hf-bf16; do
        [ -d "$root/tests/data/$kind" ] || continue
        step parity "$kind" "$nibble" parity "$root/tests/data/$kind" --a cpu:mirror=sm90 --b cuda
      done ;;
    bench)
      for device in cuda cuda:graphs=off; do
        step bench "shipped checkpoint, $device" "$nibble" bench "$model" --device "$device" -o md
      done
      step bench "27B shapes, 8 layers" "$nibble" bench --synthetic qwen3_5-27b --layers 8 --device cuda -p 512 -n 32 -o md ;;
  esac
done

grep -h -E '^\|' "$out"/bench-*.log 2>/dev/null
echo
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
cat "$out/table.txt"
exit "$failed"
