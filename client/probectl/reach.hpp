// The way to a daemon: the one at the socket, else a private one for this command's life time. Main thread.
#pragma once

#include <optional>

#include "client/connection.hpp"
#include "client/probectl/options.hpp"
#include "client/probectl/private_daemon.hpp"
#include "client/probectl/signals.hpp"

namespace probed::client {

// Fills `daemon` when a private one had to be started, which a line on stderr says: when none answers, or when the one
// at the default socket is not for this user. Errors: those of Connection::connect() when none may be started, and of
// PrivateDaemon::start().
Result<Connection> reach_daemon(const Options& options, const Signals& signals, std::optional<PrivateDaemon>& daemon);

// Whether a command that only looks things up may start one: nobody has named a daemon, so that there is none it could
// have meant.
bool may_spawn_for_look_up(const Options& options);

}  // namespace probed::client
