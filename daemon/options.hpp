// probed's command line.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

namespace probed {

struct Options {
  std::string socket;
  std::string state_dir;
  mode_t socket_mode = 0600;
  std::optional<std::string> socket_group;
  std::size_t queue_bytes = 0;
  int ready_fd = -1;     // gets one byte when the socket listens
  int lifetime_fd = -1;  // its end of file ends the daemon
  std::string log_level;
};

// nullopt: done already (--help, --version) or wrong usage; exit with `status`.
std::optional<Options> parse_options(int argc, char** argv, int& status);

}  // namespace probed
