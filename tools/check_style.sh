#!/usr/bin/env bash
# check_style.sh: does clang-format agree with the sources? Only reports; `--fix` rewrites them.
# The result depends on the version of clang-format (14 was used), so it is no test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v clang-format >/dev/null || { echo "clang-format is not installed" >&2; exit 2; }
clang-format --version
mode=(--dry-run --Werror)
case "${1:-}" in
  '') ;;
  --fix) mode=(-i) ;;
  *) echo "expected no argument or --fix, found \"$1\"" >&2; exit 2 ;;
esac
git ls-files '*.cpp' '*.h' '*.hpp' '*.c' '*.cu' '*.cuh' | xargs clang-format "${mode[@]}"
