// See held_command.hpp.
#include "client/probectl/held_command.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

#include "client/probectl/answer.hpp"
#include "client/probectl/process.hpp"

namespace probed::client {
namespace {

struct Child {
  int go = -1, exec_status = -1;
  pid_t tracer = 0;
  char* const* arguments = nullptr;
};

[[noreturn]] void run_child(const Child& child, const Signals& signals) {
  signals.restore();
  if (child.tracer > 0) ::prctl(PR_SET_PTRACER, child.tracer, 0, 0, 0);
  char byte = 0;
  ssize_t got = 0;
  do got = ::read(child.go, &byte, 1);
  while (got < 0 && errno == EINTR);
  if (got != 1) ::_exit(127);  // probectl is gone, or gave up
  ::execvp(child.arguments[0], child.arguments);
  const int error = errno;
  [[maybe_unused]] const auto told = ::write(child.exec_status, &error, sizeof(error));
  ::_exit(127);
}

Error cannot_run(std::string_view name, int error) {
  std::string hint;
  if (error == ENOENT && name.find('/') == name.npos)
    hint = "it was looked for in $PATH: a file beside you is ./NAME";
  else if (error == ENOENT && ::access(std::string(name).c_str(), F_OK) == 0)
    hint = "the file is there; what is to run it, its #! line's program or its dynamic loader, is not";
  else if (error == ENOEXEC)
    hint = "it is no program; a script begins with #!/bin/sh";
  else if (error == ENOENT && name[0] != '/')
    hint = "it was looked for from the current directory";
  return {
      Reason::bad_params, fmt::format("cannot run {}: {}", name.empty() ? "''" : name, text_of_errno(error)), hint, {}};
}

}  // namespace

Result<HeldCommand> HeldCommand::fork(std::span<const std::string> command_line, const Signals& signals, pid_t tracer) {
  int go[2], status[2];
  if (::pipe2(go, O_CLOEXEC) != 0) return cannot_run(command_line[0], errno);
  UniqueFd go_read(go[0]), go_write(go[1]);
  if (::pipe2(status, O_CLOEXEC) != 0) return cannot_run(command_line[0], errno);
  UniqueFd status_read(status[0]), status_write(status[1]);
  std::vector<char*> arguments;
  for (const auto& argument : command_line) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  HeldCommand command;
  command.name_ = command_line[0];
  command.pid_ = ::fork();
  if (command.pid_ < 0) return cannot_run(command.name_, errno);
  if (command.pid_ == 0) {
    go_write.reset();  // else the child would keep its own pipe open and never see us go
    run_child({go_read.get(), status_write.get(), tracer, arguments.data()}, signals);
  }
  command.go_ = std::move(go_write);
  command.exec_status_ = std::move(status_read);
  command.pidfd_ = open_pidfd(command.pid_);
  return command;
}

HeldCommand::HeldCommand(HeldCommand&& other) noexcept
    : name_(std::move(other.name_)),
      go_(std::move(other.go_)),
      exec_status_(std::move(other.exec_status_)),
      pidfd_(std::move(other.pidfd_)),
      pid_(std::exchange(other.pid_, -1)) {}

HeldCommand::~HeldCommand() {
  go_.reset();
  reap();
}

Result<void> HeldCommand::release(const WaitLimit& limit) {
  if (::write(go_.get(), "\n", 1) != 1) return cannot_run(name_, errno);
  const auto woken = poll_fd(exec_status_.get(), POLLIN, limit);
  if (!woken) return woken.error();
  if (*woken != Wake::message) return Error{Reason::internal, fmt::format("starting {}: interrupted", name_), "", {}};
  int error = 0;
  if (::read(exec_status_.get(), &error, sizeof(error)) == sizeof(error)) return cannot_run(name_, error);
  return {};
}

void HeldCommand::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  if (pidfd_) wait_for_exit(pidfd_, 2000);
  reap();
}

std::optional<std::string> HeldCommand::reap(int patience) {
  int status = 0;
  if (patience > 0 && pid_ > 0 && pidfd_) wait_for_exit(pidfd_, patience);
  const pid_t got = pid_ > 0 ? ::waitpid(pid_, &status, WNOHANG) : -1;
  if (got == 0) return std::nullopt;
  pid_ = -1;
  if (got < 0) return "";
  if (WIFSIGNALED(status)) return how_it_ended({}, WTERMSIG(status));
  return how_it_ended(WEXITSTATUS(status), {});
}

}  // namespace probed::client
