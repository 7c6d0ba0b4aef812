#!/usr/bin/env bash
# Debian packages by purpose, and a function that installs what is missing of them.
# Sourced by test.sh, demo.sh and bench.sh; on its own: scripts/setup.sh build test
set -euo pipefail

build_packages=(g++ meson ninja-build pkg-config ccache python3 libtbb-dev libtbbbind-2-5 libxsimd-dev nlohmann-json3-dev
  liburing-dev libaio-dev libopenblas-dev libcli11-dev libxxhash-dev libfmt-dev libopenmpi-dev openmpi-bin)
# The second line is for tests of code of other processors: compiled and run on this one.
test_packages=(libgtest-dev libgmock-dev e2fsprogs xfsprogs btrfs-progs mount util-linux
  g++-aarch64-linux-gnu googletest qemu-user)
demo_packages=(bible-kjv bible-kjv-text)
bench_packages=(fio)

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$(basename "$0"): $*"
  exit 2
}

# missing_packages NAME...: those that dpkg does not hold as installed, one a line.
missing_packages() {
  local installed name
  # dpkg-query fails when it knows nothing of one name, yet still prints all the others.
  # shellcheck disable=SC2016 # the ${} are dpkg-query's
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  for name in "$@"; do
    grep -qxF "installed $name" <<<"$installed" || printf '%s\n' "$name"
  done
}

# install_packages SET...: sets are build, test, demo, bench. Does nothing, at once, when all are there.
install_packages() {
  local set wanted=() missing=() as_root=()
  for set in "$@"; do
    case $set in
      build) wanted+=("${build_packages[@]}") ;;
      test) wanted+=("${test_packages[@]}") ;;
      demo) wanted+=("${demo_packages[@]}") ;;
      bench) wanted+=("${bench_packages[@]}") ;;
      *) die "no package set '$set'; there are: build, test, demo, bench" ;;
    esac
  done
  if [[ -n ${SPILLWAY_SKIP_INSTALL:-} ]]; then return; fi
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    die "this system has no apt-get. Install what matches these Debian packages, then run again with" \
      "SPILLWAY_SKIP_INSTALL=1: ${wanted[*]}"
  fi
  mapfile -t missing < <(missing_packages "${wanted[@]}")
  if ((${#missing[@]} == 0)); then return; fi

  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      die "these packages are missing, and there is neither root nor sudo to install them: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  # Standard output belongs to the caller's own result.
  "${apt[@]}" update >&2 || die "apt-get update failed; still missing: ${missing[*]}"
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get install failed; still missing: ${missing[*]}"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  if (($# == 0)); then die "usage: $0 SET... (build, test, demo, bench)"; fi
  install_packages "$@"
fi
