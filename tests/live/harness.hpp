// What live tests share: real targets, a private daemon, probectl, a bare JSON-RPC client, and proof that a target was
// not harmed. Everything is torn down by destructors; nothing waits by sleeping for a fixed time.
//
// Thread: the test's own. Each Process has one reader thread, so that a child never blocks on a full pipe.
// Programs are found through PROBED_BIN, PROBECTL_BIN and TARGETS_DIR, which meson sets.
#pragma once

#include <doctest/doctest.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "proto/base/fd.hpp"

// Ends a test case that this machine can't run, with the reason; tests/tally.py counts these lines.
#define SKIP_TEST(reason)                          \
  do {                                             \
    ::probed::live::report_skip(__FILE__, reason); \
    return;                                        \
  } while (false)

namespace probed::live {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;
inline constexpr Millis kPatience{10'000};  // the default deadline; PROBED_TEST_PATIENCE=N multiplies every deadline
// How often a test does what it repeats: PROBED_TEST_CYCLES, or as many as usual.
int chosen_cycles(int usual);

// A limit as this run stretches it; every function here that takes a limit does so itself.
Millis scaled(Millis limit);

void report_skip(const char* file, std::string_view reason);

// Polls (every millisecond at first, then every 20) until condition() holds or the limit passes.
bool eventually(const std::function<bool()>& condition, Millis limit = kPatience);

// The value of an environment variable that meson sets; fails the test case when it is missing.
std::string required_environment(const char* name);
std::string target_path(std::string_view name);  // TARGETS_DIR/name
bool target_runs(std::string_view name);  // false: this machine lacked what it is built with, or does not execute it

std::string read_file(const std::string& path);  // empty when it can't be read
bool write_file(const std::string& path, std::string_view text);

// A directory under /tmp of our own, removed with all it holds. Short: a socket path has 108 bytes.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

// ---- processes ------------------------------------------------------------------------------------------------------

struct Exit {
  int code = -1;   // -1 when it was killed
  int signal = 0;  // 0 when it exited
  bool operator==(const Exit&) const = default;
};
inline std::ostream& operator<<(std::ostream& out, const Exit& exit) {
  return exit.signal != 0 ? out << "killed by signal " << exit.signal : out << "exit code " << exit.code;
}
inline std::ostream& operator<<(std::ostream& out, const std::optional<Exit>& exit) {
  return exit ? out << *exit : out << "still running";
}

struct SpawnOptions {
  std::string directory;                 // empty: the test's
  std::string user;                      // run as this user when we are root
  std::vector<std::string> environment;  // "NAME=value", added to the test's own
  std::vector<int> pass_fds;             // become 3, 4, ... in the child
  int death_signal = 9;                  // what the child gets when the test dies before it
};

// A child with pipes on its standard streams; killed, with its reader joined, by the destructor. The child also gets
// death_signal when the thread that spawned it ends (PR_SET_PDEATHSIG).
class Process {
 public:
  explicit Process(const std::vector<std::string>& argv, const SpawnOptions& options = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool running();                    // reaps
  bool send(std::string_view text);  // to its standard input, as it is; false: it no longer reads
  void close_input();
  void signal(int number);

  // The next unread line of its standard output or error, without the newline; nullopt: none in time, or it ended.
  std::optional<std::string> next_line(Millis limit = kPatience);
  std::optional<std::string> next_error_line(Millis limit = kPatience);
  std::string output();  // everything so far, read or not
  std::string errors();

  // nullopt: still running when the limit passed. All output is in when this returns a value.
  std::optional<Exit> wait(Millis limit = kPatience);

 private:
  struct Streams;
  std::optional<std::string> take_line(int which, Millis limit);

  pid_t pid_ = -1;
  std::optional<Exit> exit_;
  std::unique_ptr<Streams> streams_;
};

struct CommandResult {
  Exit exit;
  std::string out, err;
  bool ok() const { return exit == Exit{0, 0}; }
};
// Runs to the end; a command that takes longer is killed and reports signal 9.
CommandResult run_command(const std::vector<std::string>& argv, const SpawnOptions& options = {},
                          Millis limit = Millis{30'000});

// ---- targets (tests/targets) ----------------------------------------------------------------------------------------

struct TargetReport {
  Exit exit;
  std::string out;
  bool ok() const { return exit == Exit{0, 0} && out.find("\nresult ok\n") != std::string::npos; }
  // The number of its "KEY N" line; -1 when there is none.
  long long value(std::string_view key) const;
};

// A program of tests/targets, ready (all set up, nothing done yet) when the constructor returns.
class Target : public Process {
 public:
  explicit Target(std::string_view name, const std::vector<std::string>& arguments = {},
                  const SpawnOptions& options = {});
  void go() { send("go\n"); }
  // Waits for its end.
  TargetReport finish(Millis limit = Millis{60'000});
};

// ---- the daemon and its command line --------------------------------------------------------------------------------

// A private probed on a socket in its own directory; listening when the constructor returns.
class Daemon {
 public:
  explicit Daemon(const std::vector<std::string>& arguments = {});
  ~Daemon();
  const std::string& socket() const { return socket_; }
  pid_t pid() const { return process_->pid(); }
  Process& process() { return *process_; }
  // Ends it by closing its lifetime pipe; what it left behind: nullopt when it did not end in time.
  std::optional<Exit> stop(Millis limit = kPatience);
  void kill();  // SIGKILL, reaped

 private:
  TempDir dir_;
  std::string socket_;
  UniqueFd lifetime_;
  std::unique_ptr<Process> process_;
};

// The guard that looks after a daemon's state directory, which is its socket's name and ".state"; 0: none is left.
pid_t guard_of(const std::string& state_directory);

// The process that is a daemon's tracer, and outlives it by the moment in which it lets everything go. 0: there is
// none.
pid_t tracer_process_of(pid_t daemon);
// What SIGKILL is to end: the daemon alone, which leaves the rest to its tracer; both, which leaves it to the guard (as
// does a machine out of memory); all three, which leaves it to the targets themselves.
enum class Killed : std::uint8_t { daemon, with_tracer, with_guard };
// guard: 0: there is none. The daemon isn't reaped.
void kill_daemon(pid_t daemon, Killed whom, pid_t guard = 0);

std::vector<std::string> probectl_argv(const Daemon& daemon, const std::vector<std::string>& arguments);
CommandResult probectl(const Daemon& daemon, const std::vector<std::string>& arguments);

// JSON as the daemon writes it; a discarded value when it is none. Bytes that are no UTF-8 arrive as lone surrogates
// (\udc80 ... \udcff), which nlohmann's parser refuses; here they become \uf780 ... \uf7ff, so that equal stays equal.
Json parse_json(std::string_view text);
// The JSON lines of some output, in order; lines that are none are left out.
std::vector<Json> json_lines(std::string_view text);

// ---- the socket -----------------------------------------------------------------------------------------------------

// A line with one call, as RpcClient sends it.
std::string request_text(std::string_view method, const Json& params, int id = 1);

// A JSON-RPC 2.0 client, one message a line. Notifications that arrive while a call waits are kept.
class RpcClient {
 public:
  explicit RpcClient(const std::string& socket_path);  // fails the test case when nobody listens

  // The response to one call: {"result":...} or {"error":...}; null when none came in time.
  Json request(std::string_view method, const Json& params = Json::object(), Millis limit = kPatience);
  // The result; fails the test case on an error.
  Json call(std::string_view method, const Json& params = Json::object(), Millis limit = kPatience);
  // The "reason" of the error; "" when the call succeeded.
  std::string refusal(std::string_view method, const Json& params = Json::object());

  bool send_raw(std::string_view bytes);
  bool close_writing();
  bool send_urgent(char byte);                                        // MSG_OOB; false: not possible here
  std::optional<std::string> receive_line(Millis limit = kPatience);  // whatever comes next
  std::optional<Json> notification(Millis limit = kPatience);
  bool closed_by_peer(Millis limit = kPatience);
  const std::string& unread() const { return buffer_; }  // what has come and is no whole line

 private:
  std::optional<std::string> receive_until(Clock::time_point deadline);
  std::optional<Json> receive(Clock::time_point deadline);

  UniqueFd fd_;
  std::string buffer_;
  std::vector<Json> notifications_;
  int next_id_ = 1;
};

// ---- first law: the target is not harmed ----------------------------------------------------------------------------

// The process that traces any of its threads. 0: nobody does; -1: it is gone.
pid_t tracer_of(pid_t pid);
// The threads of a process, as proc(5) has them: their numbers, and what they are doing.
std::map<pid_t, char> thread_states(pid_t pid);
// "libc.so.6+0x12a0: cc, file has 55" for each place of a breakpoint's size in file-backed executable mappings that
// differs, at most 20.
std::vector<std::string> text_differences(pid_t pid);
std::string vdso_difference(pid_t pid);  // "" when it is as the kernel made it

struct TargetState {
  std::set<std::string> executable_mappings;  // "start-end perms path"
  std::set<std::string> injected_mappings;    // memfd, deleted or anonymous executable ones
  std::set<std::string> fds;                  // "5 -> /path"
  std::string signals;                        // SigBlk, SigIgn, SigCgt of the main thread
  unsigned long private_text_kb = 0;          // private copies of pages of executable file mappings
};
TargetState state_of(pid_t pid);

// Whether private copies of text pages must be gone as well, or may stay as long as their bytes equal the file's.
enum class PageCopies { must_be_gone, may_stay };

// Everything that differs from what the target was before: empty when it was left as it was found.
std::vector<std::string> harm_done(pid_t pid, const TargetState& before, PageCopies copies = PageCopies::must_be_gone);
// The same, as a condition to wait for; says on stderr what harm is left when it does not come true.
bool left_unharmed(pid_t pid, const TargetState& before, PageCopies copies = PageCopies::must_be_gone,
                   Millis limit = kPatience);

// Our own children that still exist, zombies included: "PID COMM STATE".
std::vector<std::string> children_left();

}  // namespace probed::live
