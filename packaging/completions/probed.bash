# shellcheck shell=bash
# bash completion of probed(8)
_probed() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  case $previous in
  --socket) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
  --state-dir) mapfile -t COMPREPLY < <(compgen -d -- "$word") ;;
  *) mapfile -t COMPREPLY < <(compgen -W '--socket --state-dir --ready-fd --lifetime-fd --help --version' -- "$word") ;;
  esac
}
complete -F _probed probed
