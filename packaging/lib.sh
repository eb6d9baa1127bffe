# shellcheck shell=bash
# Shared by packaging/quickstart, tests/run and .ci/run: cleaning up, installing packages, building.
# Sourced, after `set -euo pipefail`. TOP is the checkout's top.

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# ---- cleaning up ----------------------------------------------------------------------------------------------------

# at_exit COMMAND: run when the script ends, however it ends; last registered first. A signal ends the script with 128+N.
exit_commands=()
at_exit() { exit_commands=("$1" ${exit_commands[@]+"${exit_commands[@]}"}); }
run_exit_commands() {
  local status=$? command
  trap '' INT TERM HUP
  for command in ${exit_commands[@]+"${exit_commands[@]}"}; do eval "$command" || true; done
  exit "$status"
}
trap run_exit_commands EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# stop_process PID [SECONDS]: ends one process that this script started and waits until it is gone; kills it when it
# takes longer than that (10).
stop_process() {
  kill -TERM "$1" 2>/dev/null || return 0
  local tries
  for ((tries = 0; tries < ${2-10} * 10; tries++)); do
    # A zombie is gone as far as anybody else can tell; the wait below reaps it.
    case $(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) in '' | Z) break ;; esac
    sleep 0.1
  done
  kill -KILL "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

# wait_until SECONDS COMMAND...: until the command succeeds.
wait_until() {
  local tries=$(($1 * 20))
  shift
  until "$@"; do
    ((tries-- > 0)) || return 1
    sleep 0.05
  done
}

# ---- packages -------------------------------------------------------------------------------------------------------

# packages_of GROUP...: their names, from packaging/dependencies.
packages_of() {
  local group
  for group in "$@"; do awk -v g="$group" '$1 == g { print $2 }' "$TOP/packaging/dependencies"; done
}

is_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

as_root() {
  if ((EUID == 0)); then "$@"; else sudo "$@"; fi
}

# Debian starts a server as soon as it is installed. We want the program and not a service: a policy-rc.d that forbids
# starting, for the time of the installation only, and only where the machine has none of its own.
policy_file=/usr/sbin/policy-rc.d
forbid_service_start() {
  [[ -e $policy_file ]] && return 0
  at_exit allow_service_start
  printf '#!/bin/sh\n# put here by %s for the time of an installation\nexit 101\n' "$TOP/packaging/lib.sh" |
    as_root tee "$policy_file" >/dev/null
  as_root chmod 755 "$policy_file"
}
allow_service_start() {
  if grep -qsF "put here by $TOP/packaging/lib.sh" "$policy_file"; then as_root rm -f "$policy_file"; fi
}

# install_packages GROUP...: what is missing of them. Touches apt only when something is.
install_packages() {
  local package missing=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "No apt here: taking for granted that these are installed: $(packages_of "$@" | tr '\n' ' ')"
    return 0
  fi
  while read -r package; do
    is_installed "$package" || missing+=("$package")
  done < <(packages_of "$@")
  ((${#missing[@]} > 0)) || return 0
  ((EUID == 0)) || command -v sudo >/dev/null ||
    die "these packages are missing and can be installed by root or with sudo only: ${missing[*]}"
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  forbid_service_start
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  as_root "${apt[@]}" update || say "apt-get update failed; trying with the lists that are here"
  as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" || die "apt-get could not install: ${missing[*]}"
  allow_service_start
}

# ---- building -------------------------------------------------------------------------------------------------------

# configure_build DIRECTORY OPTION...: meson setup, or nothing when it is set up that way already.
configure_build() {
  local dir=$1 wanted stamp
  shift
  stamp=$dir/.configured
  wanted="$TOP $*"
  if [[ -f $dir/build.ninja && -f $stamp && $(<"$stamp") == "$wanted" ]]; then return 0; fi
  if [[ ! -e $dir/meson-private/coredata.dat ]]; then
    meson setup "$dir" "$TOP" "$@" || return 1
  elif ! meson setup --reconfigure "$dir" "$TOP" "$@"; then
    say "$dir can't be used again (see above): setting it up anew"
    rm -rf "$dir"
    meson setup "$dir" "$TOP" "$@" || return 1
  fi
  printf '%s\n' "$wanted" >"$stamp"
}
