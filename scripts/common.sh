# Sourced by every script: paths, messages and the build function.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

cache=${FVLM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/fvlm-engine}
torch_version=2.11.0
torch_venv=$cache/torch-$torch_version
jobs=${FVLM_JOBS:-$(nproc)}

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
say() { printf '%s==> %s%s\n' "$bold" "$*" "$plain"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# With gcc 13, detection of stack use after return misaligns AVX-512 variables, and aligned loads of them crash.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=0}

# Adds the default location of the CUDA toolkit to PATH where nvcc is not found.
if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then PATH=$PATH:/usr/local/cuda/bin; fi
have_toolkit() { command -v nvcc >/dev/null; }
default_preset() { if have_toolkit; then echo cuda; else echo cpu; fi; }

# Prints the first comment block of a script as its help.
print_help() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"; }

# build PRESET [TARGET...]: configures on first use, builds, and reports the time.
build() {
  local preset=$1 started=$SECONDS
  shift
  mkdir -p "build/$preset"
  if [ ! -f "build/$preset/build.ninja" ]; then
    say "configuring (preset $preset)"
    cmake --preset "$preset" >"build/$preset/configure.log" 2>&1 || { cat "build/$preset/configure.log" >&2; fail "cmake --preset $preset failed"; }
  fi
  say "building (preset $preset, $jobs jobs)"
  cmake --build "build/$preset" -j "$jobs" ${1:+--target "$@"} || fail "the build failed"
  say "built in $((SECONDS - started)) s"
}
