# shellcheck shell=bash
# Configuring and compiling a build folder. Sourced, after setup.sh, from the repository's root.

# configure FOLDER OPTION...: Meson setup, repeated only when the options changed.
configure() {
  local folder=$1 log=$1/setup.log stamp=$1/configured-with mode=()
  shift
  if [[ -f $folder/build.ninja ]]; then
    if [[ -f $stamp && $(<"$stamp") == "$*" ]]; then return; fi
    mode=(--reconfigure)
  fi
  mkdir -p "$folder"
  local compiler=${CXX:-g++}
  if [[ -z ${CXX:-} ]] && command -v ccache >/dev/null; then compiler="ccache g++"; fi
  if ! CXX=$compiler meson setup "${mode[@]}" "$folder" "$@" >"$log" 2>&1; then
    cat "$log" >&2
    say "configuring $folder failed"
    return 1
  fi
  printf '%s' "$*" >"$stamp"
}

# compile FOLDER [TARGET...]: all cores; off a terminal only warnings and errors are shown.
compile() {
  local folder=$1 quiet=()
  shift
  [[ -t 2 ]] || quiet=(--quiet)
  ninja -C "$folder" -j"$(nproc)" "${quiet[@]}" "$@" >&2 || {
    say "compiling $folder failed"
    return 1
  }
}
