#include "tests/race/kills.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace probed::live {

unsigned kills(unsigned otherwise) { return from_environment("PROBED_TEST_KILLS", otherwise); }

Sender::Sender(pid_t pid, std::chrono::microseconds pause) {
  constexpr rlimit few{4096, 4096};  // of this user's that wait: should they come to nothing, others go on
  prlimit(pid, RLIMIT_SIGPENDING, &few, nullptr);
  thread_ = std::thread([=, this] { run(pid, pause); });
}

int Sender::sent() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  return sent_;
}

int Sender::signal() { return SIGRTMIN + 2; }

void Sender::run(pid_t pid, std::chrono::microseconds pause) {
  while (!stop_) {
    const sigval value{.sival_int = sent_ + 1};
    if (sigqueue(pid, signal(), value) == 0) ++sent_;
    std::this_thread::sleep_for(pause);  // the receiver is to get on, too
  }
}

std::uint64_t signals_of(pid_t pid, const std::string& name) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/status");
  const auto at = status.find(name + ":\t");
  return at == status.npos ? 0 : std::stoull(status.substr(at + name.size() + 2), nullptr, 16);
}

std::uint64_t blocked_but(pid_t pid, int handled) { return signals_of(pid, "SigBlk") & ~(1ULL << (handled - 1)); }

std::unique_ptr<Process> start_daemon(const std::string& socket) {
  auto daemon = std::make_unique<Process>(
      std::vector<std::string>{required_environment("PROBED_BIN"), "--socket", socket, "--log-level", "warn"});
  REQUIRE(eventually([&] { return ::access(socket.c_str(), F_OK) == 0 && guard_of(socket + ".state") != 0; }));
  REQUIRE(eventually([&] {
    try {
      RpcClient probe(socket);
      return true;
    } catch (...) {
      return false;
    }
  }));
  return daemon;
}

bool has_journals(const std::string& state) {
  std::error_code error;
  const auto is_journal = [](const auto& entry) { return entry.path().extension() == ".journal"; };
  return std::ranges::any_of(std::filesystem::directory_iterator(state, error), is_journal);
}

void recover(const std::string& socket) {
  const CommandResult recovered = run_command({required_environment("PROBED_BIN"), "--recover", "--socket", socket});
  CHECK_MESSAGE(recovered.ok(), recovered.err);
}

bool is_unharmed(Target& target, const std::string& state) {
  CHECK(eventually([&] { return !has_journals(state) && guard_of(state) == 0; }));
  if (!target.running() || !target.errors().empty()) return false;
  CHECK_MESSAGE(tracer_of(target.pid()) == 0, tracer_of(target.pid()));
  const auto differences = text_differences(target.pid());
  CHECK_MESSAGE(differences.empty(), joined(differences));
  return target.running();
}

}  // namespace probed::live
