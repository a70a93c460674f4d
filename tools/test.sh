#!/usr/bin/env bash
# test.sh: installs what is missing (apt), builds everything and runs all tests.
#   tools/test.sh            release build, all tests; then the sanitizer build, its tests
#   tools/test.sh --release  the first half only
# Safe to run again: builds are kept in build/release and build/debug.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$root/tools/common.sh"
cd "$root"

presets="release debug"
case "${1:-}" in
  '') ;;
  --release) presets=release ;;
  *) die "expected no argument or --release, found \"$1\"" ;;
esac

need_packages build test
need_compiler
need_cmake
fetch_disassemblers
fetch_sm70_tools

failed=""
for preset in $presets; do
  started=$SECONDS
  build="$root/build/$preset"
  fresh_if_generator_changed "$build"
  say "[$preset] configuring ($(generator))"
  cmake --preset "$preset" -G "$(generator)" >/dev/null
  say "[$preset] building on $(jobs) cores"
  cmake --build "$build" --parallel "$(jobs)"
  say "[$preset] testing; built in $((SECONDS - started)) s"
  ctest --test-dir "$build" --output-on-failure --parallel "$(jobs)" || failed="$failed $preset"
done
[ -z "$failed" ] || die "tests failed in:$failed"
