# shellcheck shell=bash
# bash completion of probed(8)
_probed() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  case $previous in
  --socket) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
  --state-dir) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
  --socket-group) mapfile -t COMPREPLY < <(compgen -g -- "$word") ;;
  --log-level) mapfile -t COMPREPLY < <(compgen -W 'trace debug info warn error' -- "$word") ;;
  *)
    mapfile -t COMPREPLY < <(compgen -W '--socket --socket-mode --socket-group --state-dir --keep-probes --recover --queue --max-rate --max-clients
      --max-user-clients --max-probes --max-user-probes --max-user-events --log-level
      --ready-fd --lifetime-fd --help --version' -- "$word")
    ;;
  esac
}
complete -F _probed probed
