// See reach.hpp.
#include "client/probectl/reach.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "client/probectl/report.hpp"

namespace probed::client {
namespace {

// Whether somebody has said which daemon is meant, so that there is none beside it.
bool is_named(const Options& options) {
  const char* from_environment = std::getenv("PROBED_SOCKET");
  return !options.socket.empty() || (from_environment && *from_environment);
}

}  // namespace

Result<Connection> reach_daemon(const Options& options, const Signals& signals, std::optional<PrivateDaemon>& daemon) {
  const auto path = socket_path(options.socket);
  auto connection = Connection::connect(path);
  if (connection || options.no_spawn) return connection;
  // The system's daemon is for others; to trace what is one's own nobody needs it.
  const bool refused = connection.error().reason == Reason::permission_denied;
  if (refused && is_named(options)) return connection;
  auto program = find_daemon();
  if (!program) return std::move(program).error();
  const char* purpose = options.command == Command::trace ? "trace" : "look-up";
  note(fmt::format("{} {}; starting a private one for this {}",
                   refused ? "this user may not use the daemon at" : "no daemon answers at", path, purpose));
  auto started = PrivateDaemon::start(*program, signals);
  if (!started) return std::move(started).error();
  daemon.emplace(std::move(started).value());
  return Connection::connect(daemon->socket());
}

bool may_spawn_for_look_up(const Options& options) {
  const bool looks_up =
      options.command == Command::functions || options.command == Command::vars || options.command == Command::lines;
  return looks_up && !options.no_spawn && !is_named(options);
}

}  // namespace probed::client
