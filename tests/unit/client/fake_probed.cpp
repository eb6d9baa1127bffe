// FakeDaemon as a program, with the options a private daemon is started with. $FAKE_JOURNAL: where it writes what it
// saw; $FAKE_STATE: it has a state directory, with a target's journal in it that it never removes.
#include <fcntl.h>
#include <poll.h>
#include <sys/un.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/unit/client/fake_daemon.hpp"

namespace {

int listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::bind(fd, generic, sizeof(address)) != 0 || ::listen(fd, 8) != 0) return -1;
  return fd;
}

void write_journal(const std::string& journal, const std::string& line) {
  if (!journal.empty()) std::ofstream(journal, std::ios::app) << line << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  const char* journal_name = std::getenv("FAKE_JOURNAL");
  const std::string journal = journal_name ? journal_name : "";
  if (std::getenv("FAKE_REFUSE_TO_START")) {
    std::fputs("probed: no reason to live\n", stderr);
    return 3;
  }
  const int listener = listen_at(options["--socket"]);
  if (listener < 0) return 1;
  if (std::getenv("FAKE_STATE")) {
    const std::string state = options["--socket"] + ".state";
    std::filesystem::create_directory(state);
    std::ofstream(state + "/1-1.journal") << "one";
    write_journal(journal, "state " + state);
  }
  write_journal(journal, "pid " + std::to_string(::getpid()));
  if (options.contains("--ready-fd")) {
    const int ready = std::stoi(options["--ready-fd"]);
    if (::write(ready, "\n", 1) != 1) return 1;
    ::close(ready);
  }
  if (options.contains("--lifetime-fd"))
    std::thread([fd = std::stoi(options["--lifetime-fd"]), journal] {
      char byte;
      if (::read(fd, &byte, 1) == 0) write_journal(journal, "lifetime over"), ::_exit(0);
    }).detach();
  for (;;) {
    const probed::UniqueFd connection(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection) return 1;
    probed::test::FakeDaemon(journal).serve(connection.get());
  }
}
