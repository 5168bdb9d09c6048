#!/usr/bin/env bash
# Make a virtual environment with the package and everything it is developed with.
# Usage: tools/install.sh FOLDER. Running it again brings the environment up to date. All that it downloads has its
# hash in requirements.lock or tools/install.lock, also what builds packages; Debian's packages have signatures.
set -euo pipefail
venv=$1

if [ -L "$venv" ]; then
  echo "$venv is a link to another clone's environment; it is left as it is"
  exit 0
fi

python=$(command -v python3.11 || command -v python3.12 || command -v python3 || true)
missing=()
if [ -z "$python" ]; then
  missing+=(python3 python3-venv)
elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  missing+=("$("$python" -c 'import sys; print(f"python3.{sys.version_info.minor}")')-venv")
fi
command -v java >/dev/null || [ -n "${JAVA_HOME:-}" ] || missing+=(openjdk-17-jre-headless)
command -v mvn >/dev/null || missing+=(maven)
command -v ps >/dev/null || missing+=(procps) # Spark's scripts ask it for processes
if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing ${missing[*]} with apt-get"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
  else
    echo "missing on this machine: ${missing[*]}. Install them: sudo apt-get install ${missing[*]}" >&2
  fi
fi
python=$(command -v python3.11 || command -v python3.12 || command -v python3)
"$python" - <<'PY'
import sys
if not (3, 11) <= sys.version_info[:2] < (3, 13):
    sys.exit(f"Python 3.11 or 3.12 is needed, found {sys.version.split()[0]}: apt-get install python3.11-venv")
PY

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install -q --require-hashes -r tools/install.lock
with_uv() { "$venv/bin/python" -m uv pip install --python "$venv/bin/python" -q "$@"; }
# uv is ten times faster than pip, which knows index settings that uv doesn't read. Offline it takes its cache as
# it is, by the hashes of the lock file: else it downloads and builds Spark again when the registry's page changed.
everything=(--no-build-isolation --require-hashes -r requirements.lock)
itself=(--no-build-isolation --no-deps -e .)
with_uv --offline "${everything[@]}" 2>/dev/null || with_uv "${everything[@]}" ||
  "$venv/bin/python" -m pip install -q "${everything[@]}"
with_uv --offline "${itself[@]}" 2>/dev/null || with_uv "${itself[@]}" ||
  "$venv/bin/python" -m pip install -q "${itself[@]}"
touch "$venv/.installed"
