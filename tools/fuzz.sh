#!/usr/bin/env bash
# fuzz.sh: builds the libFuzzer targets (clang, sanitizers) and runs each on the hostile files of the tests.
#   tools/fuzz.sh                      every target for 60 s
#   tools/fuzz.sh 600 tokenizer regex  these for 600 s each
# What a target learns is kept in build/fuzz/corpus, what breaks it in build/fuzz/found.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tools/common.sh"
cd "$root"

targets=()
for source in tests/fuzz/*_fuzz.cpp; do
  name=${source##*/}
  targets+=("${name%_fuzz.cpp}")
done

seconds=60
case "${1:-}" in
  '' | [!0-9]*) ;;
  *[!0-9]* | 0*) die "expected a whole number of seconds from 1, found \"$1\"" ;;
  *) seconds=$1; shift ;;
esac
for name in "$@"; do
  [[ " ${targets[*]} " == *" $name "* ]] || die "expected targets among: ${targets[*]}; found \"$name\""
done
[ $# -eq 0 ] || targets=("$@")

have clang++ || die "fuzzing needs clang++ with libFuzzer, found no clang++ (Debian, Ubuntu: apt-get install clang)"
echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
  clang++ -x c++ -fsanitize=fuzzer,address - -o /dev/null 2>/dev/null ||
  die "fuzzing needs libFuzzer and AddressSanitizer, found a clang++ without them (Debian, Ubuntu: apt-get install clang libclang-rt-dev)"
need_packages build test
need_cmake

build="$root/build/fuzz"
fresh_if_generator_changed "$build"
say "configuring ($(generator))"
cmake --preset fuzz -G "$(generator)" >/dev/null
say "building ${targets[*]} on $(jobs) cores"
cmake --build "$build" --parallel "$(jobs)" --target "${targets[@]/%/_fuzz}"

# seeds NAME: the files of the tests that are of this kind, under names of their own.
seeds() {
  local into="$build/seeds/$1" at=tests/data/cases file
  rm -rf "$into" && mkdir -p "$into"
  case "$1" in
    config) set -- "$at"/hostile/config/* tests/data/*/*/config.json ;;
    index) set -- "$at"/hostile/index/*/*.index.json ;;
    gguf) set -- "$at"/hostile/gguf/* ;;
    safetensors) set -- "$at"/hostile/safetensors/* ;;
    template) set -- $(find "$at/templates" -name '*.jinja') ;;
    tokenizer) set -- "$at"/hostile/tokenizer/* ;;
    *) return 0 ;;  # no files of this kind: from nothing
  esac
  for file in "$@"; do
    if [ -f "$file" ]; then cp "$file" "$into/${file//\//_}"; fi
  done
}

failed=""
for name in "${targets[@]}"; do
  corpus="$build/corpus/$name"
  found="$build/found/$name"
  mkdir -p "$corpus" "$found"
  seeds "$name"
  say "$name: $seconds s, $(find "$build/seeds/$name" -type f | wc -l) files to begin with"
  "$(find "$build/tests/fuzz" -maxdepth 1 -name "${name}_fuzz" -perm -u+x)" "$corpus" "$build/seeds/$name" \
    -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -max_len=65536 \
    -artifact_prefix="$found/" -print_final_stats=0 -verbosity=0 || failed="$failed $name"
done
[ -z "$failed" ] || die "broken:$failed; the inputs lie in build/fuzz/found"
say "nothing found"
