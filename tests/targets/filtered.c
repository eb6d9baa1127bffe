// filtered PROGRAM ARG...: executes PROGRAM below a seccomp filter that allows everything, as a sandboxed unit's or a
// container's would be: what matters is that there is one. Root's: it keeps its privileges (seccomp(2)).
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char** argv) {
  struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const struct sock_fprog program = {1, code};
  if (argc < 2) return 2;
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    perror("seccomp");
    return 77;
  }
  execv(argv[1], argv + 1);
  perror(argv[1]);
  return 127;
}
