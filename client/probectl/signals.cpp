// See signals.hpp.
#include "client/probectl/signals.hpp"

#include <sys/signalfd.h>

#include <cerrno>

#include "client/connection.hpp"

namespace probed::client {

Result<Signals> Signals::install() {
  Signals signals;
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGINT);
  sigaddset(&mask, SIGTERM);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&mask, SIGHUP);
  ::sigprocmask(SIG_BLOCK, &mask, &signals.old_mask_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &signals.old_pipe_);
  signals.fd_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.fd_)
    return Error{Reason::internal, std::string("cannot watch for signals: ") + text_of_errno(errno), "", {}};
  return signals;
}

Signals::~Signals() {
  if (!fd_) return;  // moved from
  take();            // else a second ^C from during the clean-up would strike now
  restore();
}

bool Signals::take(bool* hangup) {
  bool taken = false;
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (hangup && info.ssi_signo == SIGHUP)
      *hangup = true;
    else
      taken = true;
  }
  return taken;
}

void Signals::restore() const {
  ::sigaction(SIGPIPE, &old_pipe_, nullptr);
  ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

}  // namespace probed::client
