#include "daemon/options.hpp"

#include <bit>
#include <cstdlib>

#include <CLI/CLI.hpp>

namespace probed {
namespace {

constexpr const char* kDefaultSocket = "/run/probed/probed.sock";
constexpr unsigned kDefaultQueueMiB = 16;

std::string default_socket() {
  const char* env = std::getenv("PROBED_SOCKET");
  return env && *env ? env : kDefaultSocket;
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, int& status) {
  Options options;
  options.socket = default_socket();
  options.log_level = "info";
  std::string mode = "0600", group;
  unsigned queue_mib = kDefaultQueueMiB;

  CLI::App app("probed - the probe daemon: plants probes in running processes for its clients (see probectl)",
               "probed");
  app.set_version_flag("--version", "probed " PROBED_VERSION);
  app.add_option("--socket", options.socket, "Unix socket to listen on (or $PROBED_SOCKET)")->capture_default_str();
  app.add_option("--socket-mode", mode, "its permissions, octal")->capture_default_str();
  app.add_option("--socket-group", group, "its group");
  app.add_option("--state-dir", options.state_dir,
                 "where what must outlive the daemon is kept (default: beside the socket)");
  app.add_option("--queue", queue_mib, "room for hits that no client has been sent yet, MiB, a power of two")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--log-level", options.log_level, "trace, debug, info, warn, error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}))
      ->capture_default_str();
  app.add_option("--ready-fd", options.ready_fd, "write one byte to this descriptor once the socket listens");
  app.add_option("--lifetime-fd", options.lifetime_fd, "exit when this descriptor reads end of file");
  try {
    app.parse(argc, argv);
    options.socket_mode = static_cast<mode_t>(std::stoul(mode, nullptr, 8)) & 0777;
    if (!std::has_single_bit(queue_mib)) throw CLI::ValidationError("--queue", "must be a power of two");
  } catch (const CLI::ParseError& error) {
    status = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  } catch (const std::exception&) {
    std::fprintf(stderr, "probed: --socket-mode %s is not an octal number\n", mode.c_str());
    status = 2;
    return std::nullopt;
  }
  options.queue_bytes = std::size_t{queue_mib} << 20;
  if (!group.empty()) options.socket_group = group;
  if (options.state_dir.empty()) options.state_dir = directory_of(options.socket);
  return options;
}

}  // namespace probed
