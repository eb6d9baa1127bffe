// See reach.hpp.
#include "client/probectl/reach.hpp"

#include <fmt/format.h>

#include <cstdlib>

#include "client/probectl/report.hpp"

namespace probed::client {

Result<Connection> reach_daemon(const Options& options, const Signals& signals, std::optional<PrivateDaemon>& daemon) {
  const auto path = socket_path(options.socket);
  auto connection = Connection::connect(path);
  if (connection || options.no_spawn || connection.error().reason == Reason::permission_denied) return connection;
  auto program = find_daemon();
  if (!program) return std::move(program).error();
  const char* purpose = options.command == Command::trace ? "trace" : "look-up";
  note(fmt::format("no daemon answers at {}; starting a private one for this {}", path, purpose));
  auto started = PrivateDaemon::start(*program, signals);
  if (!started) return std::move(started).error();
  daemon.emplace(std::move(started).value());
  return Connection::connect(daemon->socket());
}

bool may_spawn_for_look_up(const Options& options) {
  const char* from_environment = std::getenv("PROBED_SOCKET");
  const bool looks_up =
      options.command == Command::functions || options.command == Command::vars || options.command == Command::lines;
  return looks_up && !options.no_spawn && options.socket.empty() && !(from_environment && *from_environment);
}

}  // namespace probed::client
