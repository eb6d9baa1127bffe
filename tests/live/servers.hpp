// Real programs from Debian as targets: redis, nginx, postgres, python3. Each runs on Unix sockets in a directory of
// its own, with nothing of the machine's configuration, and is ended by its destructor. available() is false when the
// program is not installed: the test is then skipped.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/live/harness.hpp"

namespace probed::live {

// The program's path in PATH, /usr/sbin or extra directories; empty when it is not installed.
std::string find_program(std::string_view name, const std::vector<std::string>& extra = {});

class RedisServer {
 public:
  static bool available();
  // Answers PING when this returns. `program`: empty: the machine's; `more`: options.
  explicit RedisServer(const std::string& program = "", const std::vector<std::string>& more = {});
  pid_t pid() const { return process_->pid(); }
  const std::string& socket() const { return socket_; }
  // redis-benchmark without end, so many clients; stop_load() ends it. The load runs against this server only.
  void start_load(int clients = 4);
  void stop_load() { load_.reset(); }
  // One command over the socket; its raw RESP answer ("+PONG", "$3\r\nbar", ...), empty when it does not answer.
  std::string command(const std::vector<std::string>& words);
  bool healthy() { return command({"PING"}) == "+PONG"; }

 private:
  TempDir dir_;
  std::string socket_;
  std::unique_ptr<Process> process_, load_;
};

// Serves one static page from its one worker process.
class NginxServer {
 public:
  static bool available();
  NginxServer();
  ~NginxServer();
  pid_t pid() const { return process_->pid(); }  // the master
  pid_t worker() const;                          // the process that serves; 0: none (yet)
  // One request; the page's text, empty on any failure.
  std::string get(const std::string& path = "/") const;
  bool healthy() const { return get() == kPage; }

  static constexpr const char* kPage = "probed test page\n";

 private:
  TempDir dir_;
  std::string socket_;
  std::unique_ptr<Process> process_;
};

// Requests without end from one thread of the test.
class HttpLoad {
 public:
  explicit HttpLoad(const NginxServer& server);
  ~HttpLoad() { stop(); }
  void stop();
  long good() const { return good_; }
  long bad() const { return bad_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<long> good_{0}, bad_{0};
  std::thread thread_;
};

// A fresh cluster, run as the user postgres when the test is root (postgres refuses root).
class PostgresServer {
 public:
  static bool available();
  PostgresServer();
  ~PostgresServer();
  pid_t pid() const { return process_->pid(); }  // the postmaster
  CommandResult sql(const std::string& statement);
  void start_load(int clients = 2);  // pgbench, select only, without end
  void stop_load() { load_.reset(); }
  bool healthy() { return sql("select 6*7").out == "42\n"; }

 private:
  std::vector<std::string> client_argv(const std::string& tool) const;
  TempDir dir_;
  std::string user_;
  std::unique_ptr<Process> process_, load_;
};

// A script that must print "ready" once it may be traced; it reads its standard input like a target.
class PythonProgram : public Process {
 public:
  static bool available();
  explicit PythonProgram(const std::string& script);
};

}  // namespace probed::live
