#!/usr/bin/env bash
# Installs the peers of ./bench.sh adam and nvme, PyTorch and DeepSpeed, into a virtual environment of their own, outside this
# tree, and compiles DeepSpeed's CPUAdam and async_io for this CPU: bench/peers/install.sh [FOLDER]
# It needs python3 (3.10 or later) with its venv module and headers, g++, libaio's headers, and takes 5.5 GiB: PyPI's PyTorch for Linux brings the
# CUDA libraries, of which nothing is used here.
set -euo pipefail

torch=2.15.0
deepspeed=0.19.8
folder=${1:-${SPILLWAY_ADAM_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/spillway/adam-peers}}

python3=/usr/bin/python3
[[ -f $("$python3" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]] || {
  echo "install.sh: compiling CPUAdam needs Python's headers; install python3-dev" >&2
  exit 2
}
"$python3" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check "setuptools<81" wheel ninja numpy "torch==$torch"
# Its setup.py imports the PyTorch that was just installed.
"$folder/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation "deepspeed==$deepspeed"

"$folder/bin/python" "$(dirname "${BASH_SOURCE[0]}")/adam_peer.py" --build
"$folder/bin/python" "$(dirname "${BASH_SOURCE[0]}")/nvme_peer.py" --build
echo "installed: $folder"
