# shellcheck shell=bash
# common.sh: what quickstart.sh and test.sh share. Sourced by them with $root set, not run.

say() {
  if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then printf '\033[1m==>\033[0m %s\n' "$*"; else printf '==> %s\n' "$*"; fi
}
die() { printf 'error: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }  # LEAST FOUND
jobs() { nproc 2>/dev/null || echo 2; }

header_found() { echo "#include <$1>" | "${CXX:-c++}" -std=c++20 -x c++ -E -DPCRE2_CODE_UNIT_WIDTH=8 - >/dev/null 2>&1; }

# packages_missing GROUP...: names from third_party/packages.txt that are not there.
packages_missing() {
  local package group check wanted=" $* "
  while read -r package group check _; do
    case "$package" in ''|'#'*) continue ;; esac
    case "$wanted" in *" $group "*) ;; *) continue ;; esac
    case "$check" in
      command:c++) have "${CXX:-c++}" ;;
      command:*) have "${check#command:}" ;;
      header:*) have "${CXX:-c++}" && header_found "${check#header:}" ;;
    esac || echo "$package"
  done <"${root:?}/third_party/packages.txt"
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

apt_install() {
  have apt-get || die "these packages are missing and there is no apt-get: $* (see third_party/packages.txt)"
  [ "$(id -u)" = 0 ] || have sudo || die "these packages are missing; install them as root: apt-get install $*"
  say "Installing: $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# need_packages GROUP...: installs what is missing; apt is not called when nothing is. What only makes
# builds quicker comes along when something has to be installed anyway.
need_packages() {
  local missing
  missing=$(packages_missing "$@" | tr '\n' ' ')
  if [ -z "${missing// /}" ]; then
    say "Packages: all there"
  else
    # shellcheck disable=SC2046,SC2086
    apt_install $missing $(packages_missing speed)
  fi
}

# Ubuntu 22.04's default GCC is 11: a newer one stands beside it.
need_compiler() {
  local cxx="${CXX:-c++}" version candidate
  if "$cxx" --version 2>/dev/null | head -n 1 | grep -qi clang; then return; fi
  version=$("$cxx" -dumpfullversion 2>/dev/null || echo 0)
  if version_at_least 12 "$version"; then return; fi
  for candidate in 14 13 12; do
    if have "g++-$candidate"; then export CXX="g++-$candidate" CC="gcc-$candidate"; break; fi
  done
  if [ -z "${CC:-}" ] || ! have "$CC"; then
    say "GCC is $version, 12 is needed"
    apt_install g++-12
    export CXX=g++-12 CC=gcc-12
  fi
  say "Compiler: $CXX"
}

# Ubuntu 22.04's CMake is 3.22: a newer one goes into build/, from PyPI.
need_cmake() {
  local version
  version=$(cmake --version | head -n 1 | grep -oE '[0-9]+(\.[0-9]+)+')
  if version_at_least 3.25 "$version"; then return; fi
  local venv="$root/build/cmake-venv"
  if [ ! -x "$venv/bin/cmake" ]; then
    say "CMake is $version, 3.25 is needed: installing one into build/cmake-venv"
    python3 -c 'import ensurepip' 2>/dev/null || apt_install python3-venv
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q 'cmake>=3.25,<4'
  fi
  export PATH="$venv/bin:$PATH"
}

# fetch_disassemblers: those that read CUDA code are no part of every toolkit; they go into build/cuda-tools,
# from PyPI. Without them the tests of the machine code are skipped, so nothing here is an error.
fetch_disassemblers() {
  local nvcc bin to="$root/build/cuda-tools" major wanted
  nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
  [ -x "$nvcc" ] || return 0
  bin=$(dirname "$(readlink -f "$nvcc")")
  if { have cuobjdump || [ -x "$bin/cuobjdump" ]; } && { have nvdisasm || [ -x "$bin/nvdisasm" ]; }; then return 0; fi
  if compgen -G "$to/nvidia/*/bin/cuobjdump" >/dev/null && compgen -G "$to/nvidia/*/bin/nvdisasm" >/dev/null; then
    return 0
  fi
  major=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  for wanted in "==$major.*" ">=$major"; do  # a newer one reads older code
    if timeout 120 python3 -m pip install -q --disable-pip-version-check --no-input --no-deps --target "$to" --upgrade \
      "nvidia-cuda-cuobjdump$wanted" "nvidia-cuda-nvdisasm$wanted" >/dev/null 2>&1; then
      say "Disassemblers of CUDA code: into build/cuda-tools"
      return 0
    fi
  done
  say "Disassemblers of CUDA code: not to be had (pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm); their tests are skipped"
}

# fetch_sm70_tools: CUDA 13 has no sm_70, so clang compiles its sources with parts of CUDA 12, which come into
# build/cuda12 from PyPI. Without them that check is skipped, so nothing here is an error.
fetch_sm70_tools() {
  local nvcc to="$root/build/cuda12" packages="$root/build/cuda12-packages" major
  nvcc=$(command -v nvcc || echo "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc")
  [ -x "$nvcc" ] || return 0
  major=$("$nvcc" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  if [ "$major" -lt 13 ] || compgen -G '/usr/local/cuda-12.*/bin/ptxas' >/dev/null; then return 0; fi
  if ! have clang++-19 && have apt-get && { [ "$(id -u)" = 0 ] || have sudo; }; then
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends clang-19 >/dev/null 2>&1 || true
  fi
  if ! have clang++-19; then
    say "sm_70: no clang++-19, its code is not checked"
    return 0
  fi
  [ ! -x "$to/bin/nvdisasm" ] || return 0
  rm -rf "$to" "$packages"
  local pip=(python3 -m pip --disable-pip-version-check --no-input -q)
  # triton's package holds a disassembler of CUDA 12; those of CUDA 13.2 and later no longer know sm_70.
  if timeout 240 "${pip[@]}" install --no-deps --target "$packages" 'nvidia-cuda-nvcc-cu12==12.9.*' \
    'nvidia-cuda-runtime-cu12==12.9.*' 'nvidia-cuda-cccl-cu12==12.9.*' >/dev/null 2>&1 &&
    timeout 240 "${pip[@]}" download --no-deps --only-binary=:all: -d "$packages" 'triton==3.4.0' >/dev/null 2>&1 &&
    python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract("triton/backends/nvidia/bin/nvdisasm", sys.argv[2])' \
      "$packages"/triton-*.whl "$packages"; then
    rm -f "$packages"/triton-*.whl
    mkdir -p "$to/bin" "$to/include"
    cp -r "$packages"/nvidia/cuda_nvcc/include/. "$packages"/nvidia/cuda_runtime/include/. \
      "$packages"/nvidia/cuda_cccl/include/. "$to/include/"
    ln -sf "$packages/nvidia/cuda_nvcc/bin/ptxas" "$to/bin/ptxas"
    ln -sfn "$packages/nvidia/cuda_nvcc/nvvm" "$to/nvvm"
    cp "$packages/triton/backends/nvidia/bin/nvdisasm" "$to/bin/nvdisasm"
    chmod +x "$to/bin/nvdisasm"
    say "What compiles and reads sm_70's code: into build/cuda12"
  else
    rm -rf "$packages"
    say "sm_70: its tools are not to be had (PyPI: nvidia-cuda-nvcc-cu12, triton 3.4.0), its code is not checked"
  fi
}

generator() { if have ninja; then echo Ninja; else echo "Unix Makefiles"; fi; }

# fresh_if_generator_changed DIR: a build folder keeps its generator; another one needs a new folder.
fresh_if_generator_changed() {
  local used
  [ -f "$1/CMakeCache.txt" ] || return 0
  used=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$1/CMakeCache.txt")
  [ "$used" = "$(generator)" ] || { say "$1 was made with $used: starting over"; rm -rf "$1"; }
}
