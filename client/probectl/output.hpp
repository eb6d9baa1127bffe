// Where events go: a buffer before a descriptor that may be a file, a pipe, a socket or a terminal. A reader that does
// not read never makes ^C wait: no write blocks, waiting is done in poll(2) beside the signal descriptor.
#pragma once

#include <chrono>
#include <string>

#include "client/connection.hpp"
#include "daemon/base/fd.hpp"

namespace probed::client {

class Output {
 public:
  enum class State { open, closed, failed };  // closed: the reader is gone (EPIPE)

  // Standard output, not owned.
  Output();
  // Errors: permission_denied or internal, the file cannot be written.
  static Result<Output> to_file(const std::string& path);

  // Append here, then call maybe_flush().
  std::string& buffer() { return buffer_; }
  // Flushes when the buffer is full or its oldest byte has waited long enough.
  void maybe_flush(const WaitLimit& limit);
  // Writes everything, or as much as the limit allows; the rest stays buffered.
  void flush(const WaitLimit& limit);

  State state() const { return state_; }
  std::size_t buffered() const { return buffer_.size() - written_; }
  Error error() const { return error_; }  // when failed

 private:
  enum class Kind { plain, pipe, socket, chunked };
  explicit Output(UniqueFd file);

  void find_kind();
  ssize_t write_some(const char* from, std::size_t size);
  void give_up(int error);

  UniqueFd file_;  // empty: standard output
  int fd_ = 1;
  Kind kind_ = Kind::plain;
  State state_ = State::open;
  Error error_;
  std::string buffer_;
  std::size_t written_ = 0;  // of buffer_
  Clock::time_point last_flush_ = Clock::now();
};

}  // namespace probed::client
