// probed's command line.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace probed {

inline constexpr const char* kDefaultSocket = "/run/probed/probed.sock";

struct Options {
  std::string socket;
  std::string state_dir;     // empty: not given; see guard.hpp
  bool keep_probes = false;  // persistent probes outlive this daemon
  bool recover = false;      // put right what a killed daemon has left, and end
  int fetchers_fd = -1;      // these are the fetchers; their daemon's end is at the other end of that socket
  int guard_fd = -1;         // this is a guard, which waits for the end of that descriptor
  int guard_of = -1;         // a pidfd of the daemon that it guards
  mode_t socket_mode = 0600;
  std::optional<std::string> socket_group;
  std::size_t queue_bytes = 0;
  std::uint64_t max_rate = 10'000;  // hits a second of a probe that has none of its own and is a breakpoint; 0: any
  std::size_t max_clients = 1024, max_user_clients = 256;
  std::size_t max_probes = 200'000, max_user_probes = 400'000;  // of a target; of a user other than root
  std::size_t max_user_events = 256 << 20;                      // bytes that wait for clients
  int ready_fd = -1;              // gets one byte when the socket listens; checked: open for writing
  int lifetime_fd = -1;           // its end of file ends the daemon; checked: open for reading, can be waited for
  bool remove_directory = false;  // the socket's directory goes with the daemon, when nothing else is in it
  std::string log_level;
};

// nullopt: done already (--help, --version) or wrong usage, of which stderr has a line; exit with `status`.
std::optional<Options> parse_options(int argc, char** argv, int& status);

}  // namespace probed
