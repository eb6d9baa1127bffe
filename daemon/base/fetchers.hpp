// The small processes that wait for other people's file systems in a daemon's place: fetchers, which touch a target's
// pages (fault_in.hpp), and their parent, which makes and ends them, and sees to it that nobody waits in a target's
// memory for good (visits.hpp): after kMostPatience it ends the connection of the file system in user space (FUSE) that
// the target has made everybody wait for, if that is a user's. Whoever uses that file system sees it end, as when its
// server dies.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

namespace probed::fetchers {

// What the daemon sends, a packet each; the first one carries the board of visits (visits.hpp).
struct Wish {
  enum class Kind : std::uint32_t { begin, make, end, watch };
  Kind kind = Kind::make;
  std::uint32_t number = 0;  // make: the answer has it, too
  uid_t user = 0;            // whose memory it is for
  pid_t fetcher = 0;         // end: it waits for that user's file system
};
// To make; with the descriptor of a connection when it is made.
struct Made {
  enum class Outcome : std::uint32_t { made, too_many, failed };
  std::uint32_t number = 0;
  Outcome outcome = Outcome::failed;
  pid_t fetcher = 0;
};

// What a fetcher is asked, by its own connection.
struct Request {
  pid_t task = 0;
  std::uint32_t pages = 0;
  std::uint64_t at = 0;
};
struct Reply {
  std::uint32_t pages = 0;  // could be read
  std::int32_t error = 0;   // of the next one
};

inline constexpr std::size_t kPage = 4096;     // bytes; both architectures'
inline constexpr std::size_t kMostPages = 64;  // of one request
// Alive at a time, in all, for root, and for one other user while they wait for file systems that don't answer.
inline constexpr int kMostFetchers = 32, kOfRoot = 8, kMostWaiting = 4;
inline constexpr std::chrono::milliseconds kMostPatience{1000}, kLook{250};

// The parent's life, in a program of its own (probed --fetchers SOCKET). An exit status.
int run(int socket);

}  // namespace probed::fetchers
