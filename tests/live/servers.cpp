// Real programs as targets. See servers.hpp.
#include "tests/live/servers.hpp"

#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>

namespace probed::live {
namespace {

namespace fs = std::filesystem;

void ready_or_throw(const char* what, Process& process, const std::function<bool()>& answers) {
  if (eventually([&] { return answers() || !process.running(); }, Millis{30'000}) && process.running()) return;
  throw std::runtime_error(std::string(what) + " did not start: " + process.output() + process.errors());
}

UniqueFd connect_to(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const timeval patience{10, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fd.reset();
  return fd;
}

// Sends, then receives until enough(answer) or the end.
std::string exchange(const std::string& path, const std::string& request,
                     const std::function<bool(const std::string&)>& enough) {
  const UniqueFd fd = connect_to(path);
  std::string answer;
  if (!fd || ::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    return answer;
  std::array<char, 4096> chunk;
  while (!enough(answer)) {
    const ssize_t got = ::recv(fd.get(), chunk.data(), chunk.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    answer.append(chunk.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

std::string postgres_tool(std::string_view name) {
  std::vector<std::string> directories;
  std::error_code error;
  for (const auto& version : fs::directory_iterator("/usr/lib/postgresql", error))
    directories.push_back(version.path() / "bin");
  return find_program(name, directories);
}

}  // namespace

std::string find_program(std::string_view name, const std::vector<std::string>& extra) {
  std::vector<std::string> directories = extra;
  std::istringstream path(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string directory; std::getline(path, directory, ':');) directories.push_back(directory);
  directories.insert(directories.end(), {"/usr/sbin", "/usr/bin"});
  for (const std::string& directory : directories)
    if (const std::string file = directory + "/" + std::string(name); ::access(file.c_str(), X_OK) == 0) return file;
  return "";
}

// ---- redis ----------------------------------------------------------------------------------------------------------

bool RedisServer::available() {
  return !find_program("redis-server").empty() && !find_program("redis-benchmark").empty();
}

RedisServer::RedisServer(const std::string& program, const std::vector<std::string>& more) : socket_(dir_ / "redis") {
  SpawnOptions options;
  options.directory = dir_.path();
  std::vector<std::string> argv{program.empty() ? find_program("redis-server") : program,
                                "--port",
                                "0",
                                "--unixsocket",
                                socket_,
                                "--save",
                                "",
                                "--appendonly",
                                "no",
                                "--daemonize",
                                "no"};
  argv.insert(argv.end(), more.begin(), more.end());
  process_ = std::make_unique<Process>(argv, options);
  ready_or_throw("redis-server", *process_, [&] { return healthy(); });
  // The connection that asked for that is closed by the server in its own time.
  ready_or_throw("redis-server", *process_, [&] {
    const auto is_socket = [](const std::string& fd) { return fd.find("socket:") != fd.npos; };
    return std::ranges::count_if(state_of(pid()).fds, is_socket) == 1;
  });
}

void RedisServer::start_load(int clients) {
  load_ = std::make_unique<Process>(std::vector<std::string>{find_program("redis-benchmark"), "-s", socket_, "-l", "-q",
                                                             "-t", "set,get", "-c", std::to_string(clients)});
}

std::string RedisServer::command(const std::vector<std::string>& words) {
  std::ostringstream request;
  request << '*' << words.size() << "\r\n";
  for (const std::string& word : words) request << '$' << word.size() << "\r\n" << word << "\r\n";
  // Simple answers end at the first line's end; a bulk string at the second's.
  const auto enough = [](const std::string& answer) {
    const std::size_t first = answer.find("\r\n");
    if (first == std::string::npos) return false;
    return answer[0] != '$' || answer.starts_with("$-1") || answer.find("\r\n", first + 2) != std::string::npos;
  };
  std::string answer = exchange(socket_, request.str(), enough);
  if (answer.ends_with("\r\n")) answer.resize(answer.size() - 2);
  return answer;
}

// ---- nginx ----------------------------------------------------------------------------------------------------------

bool NginxServer::available() { return !find_program("nginx").empty(); }

NginxServer::NginxServer() : socket_(dir_ / "http") {
  const std::string& base = dir_.path();
  ::chmod(base.c_str(), 0755);  // the worker runs as another user when we are root
  fs::create_directory(base + "/www");
  ::chmod((base + "/www").c_str(), 0755);
  write_file(base + "/www/index.html", kPage);
  write_file(base + "/nginx.conf", "daemon off; worker_processes 1; pid " + base + "/pid; error_log stderr;\n" +
                                       "events { worker_connections 64; }\nhttp { access_log off; types {}\n" +
                                       "client_body_temp_path " + base + "/t1; proxy_temp_path " + base + "/t2;\n" +
                                       "fastcgi_temp_path " + base + "/t3; uwsgi_temp_path " + base + "/t4;\n" +
                                       "scgi_temp_path " + base + "/t5;\n" + "server { listen unix:" + socket_ +
                                       "; root " + base + "/www; } }\n");
  SpawnOptions options;
  options.death_signal = SIGTERM;
  process_ = std::make_unique<Process>(
      std::vector<std::string>{find_program("nginx"), "-p", base, "-e", "stderr", "-c", base + "/nginx.conf"}, options);
  ready_or_throw("nginx", *process_, [&] { return healthy(); });
}

// A killed master would leave its worker behind.
NginxServer::~NginxServer() {
  process_->signal(SIGTERM);
  process_->wait();
}

pid_t NginxServer::worker() const {
  const std::string master = std::to_string(pid());
  return std::atoi(read_file("/proc/" + master + "/task/" + master + "/children").c_str());
}

std::string NginxServer::get(const std::string& path) const {
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: test\r\n\r\n";
  const std::string answer = exchange(socket_, request, [](const std::string&) { return false; });
  const std::size_t body = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.1 200") || body == std::string::npos) return "";
  return answer.substr(body + 4);
}

HttpLoad::HttpLoad(const NginxServer& server)
    : thread_([this, &server] {
        while (!stop_) ++(server.healthy() ? good_ : bad_);
      }) {}

void HttpLoad::stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

// ---- postgres -------------------------------------------------------------------------------------------------------

bool PostgresServer::available() {
  const bool installed = !postgres_tool("initdb").empty() && !postgres_tool("pgbench").empty();
  return installed && (::geteuid() != 0 || ::getpwnam("postgres") != nullptr);
}

PostgresServer::PostgresServer() : user_(::geteuid() == 0 ? "postgres" : "") {
  if (const passwd* entry = ::getpwnam("postgres"); !user_.empty() && entry != nullptr)
    if (::chown(dir_.path().c_str(), entry->pw_uid, entry->pw_gid) != 0) throw std::runtime_error("chown failed");
  SpawnOptions options;
  options.user = user_;
  options.directory = dir_.path();
  options.death_signal = SIGINT;
  const std::string data = dir_ / "data";
  const CommandResult made = run_command({postgres_tool("initdb"), "-D", data, "-U", "test", "-A", "trust", "-N",
                                          "--no-instructions", "-E", "UTF8", "--locale=C"},
                                         options, Millis{120'000});
  if (!made.ok()) throw std::runtime_error("initdb failed: " + made.out + made.err);
  process_ = std::make_unique<Process>(
      std::vector<std::string>{postgres_tool("postgres"), "-D", data, "-k", dir_.path(), "-h", "", "-F"}, options);
  ready_or_throw("postgres", *process_, [&] { return healthy(); });
}

// SIGINT is its "fast shutdown": backends go first, shared memory is given back.
PostgresServer::~PostgresServer() {
  stop_load();
  process_->signal(SIGINT);
  process_->wait();
}

std::vector<std::string> PostgresServer::client_argv(const std::string& tool) const {
  return {postgres_tool(tool), "-h", dir_.path(), "-U", "test"};
}

CommandResult PostgresServer::sql(const std::string& statement) {
  std::vector<std::string> argv = client_argv("psql");
  argv.insert(argv.end(), {"-d", "postgres", "-X", "-q", "-t", "-A", "-c", statement});
  return run_command(argv);
}

void PostgresServer::start_load(int clients) {
  std::vector<std::string> prepare = client_argv("pgbench"), load = prepare;
  prepare.insert(prepare.end(), {"-i", "-q", "postgres"});
  load.insert(load.end(), {"-S", "-T", "100000", "-c", std::to_string(clients), "postgres"});
  if (!load_ && !run_command(prepare, {}, Millis{60'000}).ok()) throw std::runtime_error("pgbench -i failed");
  load_ = std::make_unique<Process>(load);
}

// ---- python ---------------------------------------------------------------------------------------------------------

bool PythonProgram::available() { return ::access("/usr/bin/python3", X_OK) == 0; }

PythonProgram::PythonProgram(const std::string& script) : Process({"/usr/bin/python3", "-u", "-c", script}) {
  if (next_line() != "ready") throw std::runtime_error("python3 did not get ready: " + errors());
}

}  // namespace probed::live
