#!/usr/bin/env bash
# Makes a folder that ./gpu-check.sh runs from on a machine that has a card and little else: what was built, every library it
# needs outside the C and C++ runtime and the driver, and the check itself, under the same relative paths as here.
#   scripts/gpu_bundle.sh [--build DIR] [--out DIR] [--without LIBRARY]...
# Default: build, to build/bundle. --without libcublasLt: the target has it. Then, there: cd bundle && ./gpu-check.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() {
  echo "gpu_bundle.sh: $*" >&2
  exit 2
}

build=$root/build out='' without=()
while (($#)); do
  case $1 in
    --build | --out | --without)
      (($# > 1)) || die "$1 needs a value"
      case $1 in
        --build) build=$2 ;;
        --out) out=$2 ;;
        --without) without+=("$2") ;;
      esac
      shift 2
      ;;
    *) die "unknown argument '$1'; usage: scripts/gpu_bundle.sh [--build DIR] [--out DIR] [--without LIBRARY]..." ;;
  esac
done
build=$(cd "$build" && pwd)
out=${out:-$build/bundle}

cd "$build"
mapfile -t binaries < <("$root/gpu-check.sh" --build "$build" --programs)
for file in "${binaries[@]}"; do
  [[ -f $file ]] || die "no $build/$file; build it first: ninja -C $build"
done

# is_left_out NAME: part of every Linux system, of the driver, or said to be on the target.
is_left_out() {
  local library
  case $1 in
    ld-linux* | linux-vdso* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so* | libresolv.so* | libutil.so* | libstdc++.so* | libgcc_s.so* | \
      libcuda.so* | libnvidia-*) return 0 ;;
  esac
  for library in "${without[@]}"; do
    if [[ $1 == "$library"* ]]; then return 0; fi
  done
  return 1
}

rm -rf "$out"
mkdir -p "$out/build/lib"
for file in "${binaries[@]}"; do
  install -D "$file" "$out/build/$file"
done
missing=$(ldd "${binaries[@]}" | awk '/not found/ {print $1}' | sort -u)
[[ -z $missing ]] || die "these libraries are not on this machine either: $missing"
while read -r name path; do
  if ! is_left_out "$name"; then cp -L "$path" "$out/build/lib/$name"; fi
done < <(ldd "${binaries[@]}" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u)

cd "$root"
for file in gpu-check.sh bench/gpu/*.py bench/peers/gpu_peer.py gpu/gemm_support.txt tests/fixtures/gpu_losses.json; do
  install -D "$file" "$out/$file"
done
echo "$out: $(du -sh "$out" | cut -f1), of which libraries $(du -sh "$out/build/lib" | cut -f1)"
