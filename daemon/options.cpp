// See options.hpp. CLI11 reports through exceptions; they end here.
#include "daemon/options.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include <CLI/CLI.hpp>

#include "proto/base/fd.hpp"

namespace probed {
namespace {

constexpr unsigned kDefaultQueueMiB = 16;

std::string default_socket() {
  const char* env = std::getenv("PROBED_SOCKET");
  return env && *env ? env : kDefaultSocket;
}

// Throws what CLI11 throws for its own checks: the caller reports all of them alike.
[[noreturn]] void refuse(const std::string& option, const std::string& why) { throw CLI::ValidationError(option, why); }

mode_t parse_mode(const std::string& text) {
  unsigned mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (error != std::errc() || end != text.data() + text.size() || mode > 0777)
    refuse("--socket-mode", text + " is no octal mode from 0 to 0777");
  return static_cast<mode_t>(mode);
}

// Found out now, not when the descriptor is needed: then there is a socket already, and maybe clients.
void check_descriptor(const std::string& option, int fd, int unusable_mode) {
  const auto what = option + " " + std::to_string(fd);
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0)
    refuse(what, std::string(std::strerror(errno)) + ": whoever starts probed must open it and let it be inherited");
  if ((flags & O_ACCMODE) == unusable_mode)
    refuse(what, std::string("it is not open for ") + (unusable_mode == O_WRONLY ? "reading" : "writing"));
}

void check_waitable(const std::string& option, int fd) {
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  if (set && ::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event) != 0 && errno == EPERM)  // epoll_ctl(2)
    refuse(option + " " + std::to_string(fd), "it can't be waited for: give one end of a pipe or socket");
}

void check(Options& options, const CLI::App& app, const std::string& mode, unsigned queue_mib) {
  options.socket_mode = parse_mode(mode);
  if (!std::has_single_bit(queue_mib)) refuse("--queue", std::to_string(queue_mib) + " is no power of two");
  options.queue_bytes = std::size_t{queue_mib} << 20;
  if (app.count("--ready-fd") > 0) check_descriptor("--ready-fd", options.ready_fd, O_RDONLY);
  if (app.count("--lifetime-fd") > 0) check_descriptor("--lifetime-fd", options.lifetime_fd, O_WRONLY);
  if (app.count("--lifetime-fd") > 0) check_waitable("--lifetime-fd", options.lifetime_fd);
}

void add_limits(CLI::App& app, Options& options) {
  const auto limit = [&app](const char* name, std::size_t& value, const char* what) {
    app.add_option(name, value, what)->check(CLI::Range(std::size_t{1}, std::size_t{1'000'000}))->capture_default_str();
  };
  limit("--max-clients", options.max_clients, "connections at a time; the last 32 are root's");
  limit("--max-user-clients", options.max_user_clients, "of them of one user other than root");
  limit("--max-probes", options.max_probes, "probes in one process");
  limit("--max-user-probes", options.max_user_probes, "probes of one user other than root, in all processes");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& status) {
  Options options;
  options.socket = default_socket();
  options.log_level = "info";
  std::string mode = "0600", group;
  unsigned queue_mib = kDefaultQueueMiB;
  std::size_t user_events_mib = options.max_user_events >> 20;

  CLI::App app("probed - the probe daemon: plants probes in running processes for its clients (see probectl)",
               "probed");
  app.set_version_flag("-V,--version", "probed " PROBED_VERSION);
  app.add_option("--socket", options.socket, "Unix socket to listen on (or $PROBED_SOCKET)")->capture_default_str();
  app.add_option("--socket-mode", mode, "its permissions, octal")->capture_default_str();
  app.add_option("--socket-group", group, "its group");
  app.add_option("--state-dir", options.state_dir,
                 "made when it is missing: what has to be put back in targets should this daemon be killed "
                 "[the socket's path and .state]");
  app.add_flag(
      "--keep-probes", options.keep_probes,
      "persistent probes (probectl add) outlive this daemon, however it ends: the next one with this option and "
      "the same --state-dir puts them back");
  app.add_option("--fetchers", options.fetchers_fd)->group("");  // base/fetchers.hpp
  app.add_flag("--recover", options.recover, "put back what a killed daemon has left in its targets, and exit");
  app.add_option("--guard", options.guard_fd)->group("");  // guard.hpp
  app.add_option("--guard-of", options.guard_of)->group("");
  app.add_option("--queue", queue_mib, "room for hits that no client has been sent yet, MiB, a power of two")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option(
         "--max-rate", options.max_rate,
         "hits a second, for twenty seconds on end, after which a breakpoint without a rate of its own is disabled; "
         "0: any number")
      ->capture_default_str();
  add_limits(app, options);
  app.add_option("--max-user-events", user_events_mib, "room for events that wait for the clients of one user, MiB")
      ->check(CLI::Range(std::size_t{1}, std::size_t{65'536}))
      ->capture_default_str();
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.add_option("--ready-fd", options.ready_fd, "write one byte to this descriptor once the socket listens");
  app.add_option("--lifetime-fd", options.lifetime_fd, "exit when this descriptor reads end of file");
  app.add_flag("--remove-directory", options.remove_directory)->group("");  // for probectl's private daemons
  try {
    app.parse(argc, argv);
    check(options, app, mode, queue_mib);
    options.max_user_events = user_events_mib << 20;
  } catch (const CLI::Success& asked) {  // --help, --version
    status = app.exit(asked);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "probed: error: %s (see probed --help)\n", error.what());
    status = 2;
    return std::nullopt;
  }
  if (!group.empty()) options.socket_group = group;
  return options;
}

}  // namespace probed
