#!/usr/bin/env bash
# quickstart.sh: from a clone to generated text. Installs what is missing (apt), builds the nibble
# command into build/quickstart and lets the checkpoint of the tests continue a sentence.
# Safe to run again: what is there stays.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tools/common.sh"
started=$SECONDS
mkdir -p "$root/build"

need_packages build
need_compiler
need_cmake

cuda=OFF
if have nvidia-smi && nvidia-smi -L >/dev/null 2>&1; then cuda=AUTO; fi
build="$root/build/quickstart"
fresh_if_generator_changed "$build"
# The first text should come soon: the kernels of this processor alone, the rest lightly optimised.
isas=portable
if grep -qw avx512f /proc/cpuinfo 2>/dev/null && grep -qw avx512vl /proc/cpuinfo; then
  isas=avx512
elif grep -qw avx2 /proc/cpuinfo 2>/dev/null; then
  isas=avx2
elif [ "$(uname -m)" = aarch64 ]; then
  isas=neon
fi
say "Configuring $build (Release, $(generator), CUDA $cuda)"
cmake -S "$root" -B "$build" -G "$(generator)" -DCMAKE_BUILD_TYPE=Release \
  -DNIBBLE_TESTS=OFF -DNIBBLE_TOOLS=ON -DNIBBLE_CPU_ISAS=$isas -DNIBBLE_OPTIMIZE=-O1 -DNIBBLE_CUDA=$cuda >"$root/build/quickstart.log" \
  || { cat "$root/build/quickstart.log"; die "configuring failed"; }

say "Building the nibble command on $(jobs) cores"
cmake --build "$build" --target nibble_cli --parallel "$(jobs)"
nibble=$(find "$build" -type f -name nibble -perm -u+x | head -n 1)
[ -n "$nibble" ] || die "the build made no program called nibble in $build"

say "Ready after $((SECONDS - started)) s: $nibble"
model="$root/tests/data/model/hf-nvfp4-ct"
say "$nibble generate $model -p 'The capital of France is' -n 32"
"$nibble" generate "$model" -p 'The capital of France is' -n 32 --echo
