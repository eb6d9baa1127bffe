// Children, targets, the daemon and probectl for live tests. See harness.hpp.
#include "tests/live/harness.hpp"

#include <elf.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace probed::live {
namespace {

struct Pipe {
  UniqueFd read, write;
  Pipe() {
    std::array<int, 2> fds{};
    if (::pipe2(fds.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    read.reset(fds[0]);
    write.reset(fds[1]);
  }
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> child_environment(const std::vector<std::string>& added) {
  std::vector<std::string> all = added;
  for (char** entry = environ; *entry; ++entry) all.emplace_back(*entry);
  return all;
}

// What the child needs, gathered before the fork: between fork and exec only async-signal-safe calls are allowed.
struct ChildPlan {
  std::vector<char*> argv, environment;
  const char* directory = "";
  uid_t uid = 0;
  gid_t gid = 0;
  bool change_user = false;
  int death_signal = SIGKILL;
  std::vector<int> fds{};  // become 0, 1, 2, ...
};

[[noreturn]] void become(const ChildPlan& plan, pid_t parent) {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Two steps: a source may be one of the numbers that are about to be overwritten.
  std::array<int, 16> parked{};
  for (std::size_t i = 0; i < plan.fds.size(); ++i) parked[i] = ::fcntl(plan.fds[i], F_DUPFD_CLOEXEC, 64);
  for (std::size_t i = 0; i < plan.fds.size(); ++i) ::dup2(parked[i], static_cast<int>(i));
  if (plan.directory[0] != '\0' && ::chdir(plan.directory) != 0) ::_exit(127);
  if (plan.change_user && (::setgroups(0, nullptr) != 0 || ::setgid(plan.gid) != 0 || ::setuid(plan.uid) != 0))
    ::_exit(127);
  // A shell without job control starts what is in the background with these ignored, and the tests with it.
  for (const int number : {SIGINT, SIGQUIT}) ::signal(number, SIG_DFL);
  ::prctl(PR_SET_PDEATHSIG, plan.death_signal);  // after setuid, which clears it
  if (::getppid() != parent) ::_exit(127);
  ::execvpe(plan.argv[0], plan.argv.data(), plan.environment.data());
  ::_exit(127);
}

void look_up_user(const std::string& name, ChildPlan& plan) {
  if (name.empty() || ::geteuid() != 0) return;
  const passwd* entry = ::getpwnam(name.c_str());
  if (entry == nullptr) throw std::runtime_error("no user " + name);
  plan.uid = entry->pw_uid;
  plan.gid = entry->pw_gid;
  plan.change_user = true;
}

Exit decode_status(int status) {
  if (WIFEXITED(status)) return {WEXITSTATUS(status), 0};
  return {-1, WTERMSIG(status)};
}

}  // namespace

Millis scaled(Millis limit) {
  const char* factor = std::getenv("PROBED_TEST_PATIENCE");
  return limit * (factor ? std::max(1, std::atoi(factor)) : 1);
}

int chosen_cycles(int usual) {
  const char* cycles = std::getenv("PROBED_TEST_CYCLES");
  return cycles ? std::atoi(cycles) : usual;
}

void report_skip(const char* file, std::string_view reason) {
  const doctest::TestCaseData* test = doctest::getContextOptions()->currentTest;
  std::cout << "[skip] " << (test ? test->m_name : file) << ": " << reason << std::endl;
}

bool eventually(const std::function<bool()>& condition, Millis limit) {
  const auto deadline = Clock::now() + scaled(limit);
  Millis pause{1};
  while (!condition()) {
    if (Clock::now() >= deadline) return condition();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, Millis{20});
  }
  return true;
}

std::string required_environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set; run the tests with meson test");
  return value;
}

std::string target_path(std::string_view name) { return required_environment("TARGETS_DIR") + "/" + std::string(name); }
// Kernels without IA32 emulation execute no 32-bit programs: ENOEXEC.
static bool kernel_executes(const std::string& path) {
  std::array<char, EI_NIDENT> ident{};
  std::ifstream(path, std::ios::binary).read(ident.data(), ident.size());
  if (ident[EI_CLASS] != ELFCLASS32) return true;
  const pid_t child = ::fork();
  if (child == 0) {
    const int nothing = ::open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) ::dup2(nothing, fd);
    ::execl(path.c_str(), path.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return !(WIFEXITED(status) && WEXITSTATUS(status) == 127);
}

bool target_runs(std::string_view name) {
  const std::string path = target_path(name);
  return ::access(path.c_str(), X_OK) == 0 && kernel_executes(path);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

bool write_file(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  return static_cast<bool>(out.flush());
}

TempDir::TempDir() : path_("/tmp/probed-test-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + path_);
}
TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

// ---- Process --------------------------------------------------------------------------------------------------------

// The child's standard streams: input is written by the test, output and errors are gathered by one reader thread.
struct Process::Streams {
  UniqueFd input;
  std::array<UniqueFd, 2> from;  // 0: output, 1: errors
  Pipe stop;                     // closing its write end ends the reader: a grandchild may keep the pipes open
  std::mutex mutex;
  std::array<std::string, 2> text;
  std::array<std::size_t, 2> taken{};
  bool ended = false;
  std::thread reader;

  void read_some(std::size_t which) {
    std::array<char, 65536> chunk;
    const ssize_t got = ::read(from[which].get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) return;
    if (got <= 0) return from[which].reset();
    const std::lock_guard lock(mutex);
    text[which].append(chunk.data(), static_cast<std::size_t>(got));
  }

  void run() {
    while (from[0] || from[1]) {
      std::array<pollfd, 3> fds{{{from[0].get(), POLLIN, 0}, {from[1].get(), POLLIN, 0}, {stop.read.get(), POLLIN, 0}}};
      if (::poll(fds.data(), fds.size(), -1) < 0) continue;
      for (std::size_t which = 0; which < 2; ++which)
        if (fds[which].revents != 0) read_some(which);
      if (fds[2].revents != 0 && fds[0].revents == 0 && fds[1].revents == 0) break;
    }
    const std::lock_guard lock(mutex);
    ended = true;
  }

  void finish() {
    stop.write.reset();
    if (reader.joinable()) reader.join();
  }
};

Process::Process(const std::vector<std::string>& argv, const SpawnOptions& options)
    : streams_(std::make_unique<Streams>()) {
  Pipe in, out, err;
  std::vector<std::string> arguments = argv, environment = child_environment(options.environment);
  ChildPlan plan{pointers(arguments), pointers(environment), options.directory.c_str()};
  plan.fds = {in.read.get(), out.write.get(), err.write.get()};
  plan.fds.insert(plan.fds.end(), options.pass_fds.begin(), options.pass_fds.end());
  plan.death_signal = options.death_signal;
  look_up_user(options.user, plan);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(plan, parent);
  if (pid_ < 0) throw std::runtime_error("fork failed");
  streams_->input = std::move(in.write);
  streams_->from = {std::move(out.read), std::move(err.read)};
  streams_->reader = std::thread([streams = streams_.get()] { streams->run(); });
}

Process::~Process() {
  if (running()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  streams_->finish();
}

bool Process::running() {
  if (exit_) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return true;
  exit_ = decode_status(status);
  return false;
}

bool Process::send(std::string_view text) {
  // A child that is gone must not kill the test: SIGPIPE is ignored for good.
  static const auto ignored = ::signal(SIGPIPE, SIG_IGN);
  (void)ignored;
  while (!text.empty()) {
    const ssize_t wrote = ::write(streams_->input.get(), text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return true;
}

void Process::close_input() { streams_->input.reset(); }

void Process::signal(int number) {
  if (running()) ::kill(pid_, number);
}

std::optional<std::string> Process::take_line(int which, Millis limit) {
  std::optional<std::string> line;
  const auto index = static_cast<std::size_t>(which);
  eventually(
      [&] {
        const std::lock_guard lock(streams_->mutex);
        std::size_t& at = streams_->taken[index];
        const std::string& text = streams_->text[index];
        const std::size_t end = text.find('\n', at);
        if (end == std::string::npos) return streams_->ended;
        line = text.substr(at, end - at);
        at = end + 1;
        return true;
      },
      limit);
  return line;
}

std::optional<std::string> Process::next_line(Millis limit) { return take_line(0, limit); }
std::optional<std::string> Process::next_error_line(Millis limit) { return take_line(1, limit); }

std::string Process::output() {
  const std::lock_guard lock(streams_->mutex);
  return streams_->text[0];
}
std::string Process::errors() {
  const std::lock_guard lock(streams_->mutex);
  return streams_->text[1];
}

std::optional<Exit> Process::wait(Millis limit) {
  if (!eventually([&] { return !running(); }, limit)) return std::nullopt;
  streams_->finish();
  return exit_;
}

CommandResult run_command(const std::vector<std::string>& argv, const SpawnOptions& options, Millis limit) {
  Process process(argv, options);
  process.close_input();
  std::optional<Exit> exit = process.wait(limit);
  if (!exit) {
    process.signal(SIGKILL);
    exit = process.wait();
  }
  return {exit.value_or(Exit{}), process.output(), process.errors()};
}

// ---- targets, daemon, probectl --------------------------------------------------------------------------------------

long long TargetReport::value(std::string_view key) const {
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);)
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ')
      return std::atoll(line.c_str() + key.size() + 1);
  return -1;
}

namespace {
std::vector<std::string> target_argv(std::string_view name, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv{target_path(name)};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}
}  // namespace

Target::Target(std::string_view name, const std::vector<std::string>& arguments, const SpawnOptions& options)
    : Process(target_argv(name, arguments), options) {
  const std::optional<std::string> line = next_line();
  if (!line || !line->starts_with("ready " + std::to_string(pid())))
    throw std::runtime_error("target " + std::string(name) + " did not get ready: " + line.value_or("(nothing)") + " " +
                             errors());
}

TargetReport Target::finish(Millis limit) {
  const std::optional<Exit> exit = wait(limit);
  return {exit.value_or(Exit{}), output()};
}

Daemon::Daemon(const std::vector<std::string>& arguments) : socket_(dir_ / "s") {
  Pipe ready, lifetime;
  std::vector<std::string> argv{
      required_environment("PROBED_BIN"), "--socket", socket_, "--ready-fd", "3", "--lifetime-fd", "4"};
  // Tests count every hit, for longer than the daemon lets a hot breakpoint go on by itself.
  if (std::ranges::find(arguments, "--max-rate") == arguments.end()) argv.insert(argv.end(), {"--max-rate", "0"});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  SpawnOptions options;
  options.pass_fds = {ready.write.get(), lifetime.read.get()};
  process_ = std::make_unique<Process>(argv, options);
  ready.write.reset();
  lifetime_ = std::move(lifetime.write);
  pollfd wait{ready.read.get(), POLLIN, 0};
  char byte = 0;
  const auto patience = static_cast<int>(scaled(kPatience).count());
  if (::poll(&wait, 1, patience) != 1 || ::read(ready.read.get(), &byte, 1) != 1)
    throw std::runtime_error("probed did not get ready: " + process_->errors());
}

Daemon::~Daemon() {
  if (process_->running() && !stop()) kill();
}

std::optional<Exit> Daemon::stop(Millis limit) {
  lifetime_.reset();
  return process_->wait(limit);
}

void Daemon::kill() {
  process_->signal(SIGKILL);
  process_->wait();
}

pid_t guard_of(const std::string& state_directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    const std::string line = read_file(entry.path() / "cmdline");
    if (line.find("--guard") != std::string::npos && line.find(state_directory) != std::string::npos) return pid;
  }
  return 0;
}

pid_t tracer_process_of(pid_t daemon) {
  std::error_code error;
  const std::string proc = "/proc/" + std::to_string(daemon);
  for (const auto& task : std::filesystem::directory_iterator(proc + "/task", error)) {
    std::istringstream children(read_file(task.path() / "children"));
    for (pid_t child = 0; children >> child;)
      if (read_file("/proc/" + std::to_string(child) + "/comm") == "probed-tracer\n") return child;
  }
  return 0;
}

// Nobody is left a moment to clean up for those that were killed before it: the tracer's end is the daemon's, too.
void kill_daemon(pid_t daemon, Killed whom, pid_t guard) {
  const pid_t tracer = whom == Killed::daemon ? 0 : tracer_process_of(daemon);
  if (whom == Killed::with_guard && guard > 0) ::kill(guard, SIGKILL);
  if (tracer > 0) ::kill(tracer, SIGKILL);
  ::kill(daemon, SIGKILL);
}

std::vector<std::string> probectl_argv(const Daemon& daemon, const std::vector<std::string>& arguments) {
  std::vector<std::string> argv{required_environment("PROBECTL_BIN"), "--socket", daemon.socket()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

CommandResult probectl(const Daemon& daemon, const std::vector<std::string>& arguments) {
  return run_command(probectl_argv(daemon, arguments));
}

Json parse_json(std::string_view text) {
  std::string plain(text);
  for (std::size_t at = 0; (at = plain.find('\\', at)) != std::string::npos; at += 2) {
    const std::string_view escape = std::string_view(plain).substr(at, 5);
    if (escape.size() < 5 || !escape.starts_with("\\ud")) continue;
    if (escape[3] >= '8' && escape[3] <= 'b') at += 6;  // a high surrogate: the low one behind it is not alone
    const bool lone = escape[3] == 'c' && escape[4] >= '8';
    if (lone) plain.replace(at + 2, 2, "f7");
  }
  return Json::parse(plain, nullptr, false);
}

std::vector<Json> json_lines(std::string_view text) {
  std::vector<Json> out;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    Json value = parse_json(line);
    if (!value.is_discarded()) out.push_back(std::move(value));
  }
  return out;
}

}  // namespace probed::live
