#!/usr/bin/env bash
# Checks and measures a machine with a CUDA card: ./gpu-check.sh [--build DIR] [--out DIR] [--only STEP...] [--minutes N].
# Needs what was built (with its libraries, see scripts/gpu_bundle.sh) and Python; builds, installs and fetches nothing.
# The last line is "N passed, N failed, N skipped"; status 1 if any failed. docs/cuda.md says what the steps are.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${SPILLWAY_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || {
  echo "gpu-check.sh: '$python' is no Python 3.8 or later; name one with SPILLWAY_PYTHON" >&2
  exit 2
}
exec "$python" "$root/bench/gpu/check.py" "$@"
