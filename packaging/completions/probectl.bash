# shellcheck shell=bash
# bash completion of probectl(1): sub-commands, options, pids, and the names of probes and functions as the daemon knows
# them.
_probectl_commands='trace attach detach ps add remove enable disable list profile stream format arm disarm optimize
  functions vars lines status help'

_probectl_options() {
  case $1 in
  trace) echo '-p --pid -n --name -e --probe --filter --count --duration --follow-fork --no-optimize --max-rate --expire --pending --no-spawn --reconnect -o --output --append --overwrite --sort --no-sort --format --time --socket --json --verbose' ;;
  add) echo '-p --filter --disabled --no-optimize --max-rate --expire --pending --follow-fork --verbose' ;;
  attach) echo '--follow-fork' ;;
  remove | enable | disable) echo '--all -p' ;;
  format) echo '-p' ;;
  stream) echo '-p --count --duration -o --append --overwrite --sort --no-sort --format --time --reconnect' ;;
  functions) echo '-p --usdt --limit --no-spawn' ;;
  list | profile) echo '-p --verbose' ;;
  vars | lines) echo '-p --no-spawn' ;;
  esac
}

# The names of the probes that exist; nothing when no daemon answers.
_probectl_probes() {
  probectl list --json 2>/dev/null | sed -n 's/.*"name":"\([^"]*\)".*/\1/p'
}

_probectl_pids() {
  local entry
  for entry in /proc/[0-9]*; do [[ -O $entry || $EUID == 0 ]] && echo "${entry#/proc/}"; done
}

_probectl_names() {
  cat /proc/[0-9]*/comm 2>/dev/null | sort -u
}

# The sub-command on the line so far.
_probectl_command() {
  local i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
    --socket) ((i++)) ;;
    -*) ;;
    *)
      echo "${COMP_WORDS[i]}"
      return
      ;;
    esac
  done
}

_probectl() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command words
  command=$(_probectl_command)
  case $previous in
  -p) words=$(_probectl_pids) ;;
  -n) words=$(_probectl_names) ;;
  --format) words='text json' ;;
  --time) words='mono wall delta' ;;
  --socket | -o)
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
    return
    ;;
  -e | --filter | --count | --duration | --limit | --reconnect) return ;;
  *)
    case $command in
    '' | help) words="$_probectl_commands --socket --json --help --version" ;;
    attach | detach) words="$(_probectl_pids) $(_probectl_options "$command")" ;;
    remove | enable | disable | stream | format) words="$(_probectl_probes) $(_probectl_options "$command") --json" ;;
    optimize) words='on off' ;;
    *) words="$(_probectl_options "$command") --json --help" ;;
    esac
    ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _probectl probectl
