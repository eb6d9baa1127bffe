// Where events go: a buffer before a descriptor that may be a file, a pipe, a socket or a terminal. A reader that does
// not read never makes ^C wait: no write blocks, waiting is done in poll(2) beside the signal descriptor.
#pragma once

#include <chrono>
#include <string>

#include "client/connection.hpp"
#include "client/probectl/options.hpp"
#include "proto/base/fd.hpp"

namespace probed::client {

class Output {
 public:
  enum class State { open, closed, failed };  // closed: the reader is gone (EPIPE)

  // Standard output, not owned.
  Output();
  // What a file that is there, and not empty, is to become. Of others (a pipe, a device) nothing is asked.
  enum class Existing { refuse, append, overwrite };
  // Errors: unsupported, there is something in it; permission_denied or internal, it cannot be written.
  static Result<Output> to_file(const std::string& path, Existing existing);

  // Append here, then call maybe_flush().
  std::string& buffer() { return buffer_; }
  // Flushes when the buffer is full or its oldest byte has waited long enough.
  void maybe_flush(const WaitLimit& limit);
  // Writes everything, or as much as the limit allows; the rest stays buffered.
  void flush(const WaitLimit& limit);

  bool is_terminal() const { return path_.empty() && is_terminal_; }  // standard output's
  // Whether it is a file of a name, which may have been renamed and be wanted anew (logrotate(8)).
  bool is_file() const { return !path_.empty(); }
  // Writes what is buffered to the file as it is, and goes on in one of that name. Errors: as to_file()'s; then nothing
  // has changed.
  Result<void> reopen(const WaitLimit& limit);
  // A hang-up that is the terminal's, and nobody's wish for another file.
  bool lost_its_terminal() const;

  State state() const { return state_; }
  std::size_t buffered() const { return buffer_.size() - written_; }
  Error error() const;  // when failed

 private:
  enum class Kind { plain, pipe, socket, chunked };
  Output(UniqueFd file, std::string path);

  void find_kind();
  ssize_t write_some(const char* from, std::size_t size);
  void give_up(int error);
  void drop();

  UniqueFd file_;  // empty: standard output
  std::string path_;
  bool has_terminal_ = false;
  int fd_ = 1;
  Kind kind_ = Kind::plain;
  State state_ = State::open;
  bool is_terminal_ = false;
  int failure_ = 0;       // errno
  std::size_t lost_ = 0;  // events that were to be written since
  std::string buffer_;
  std::size_t written_ = 0;  // of buffer_
  Clock::time_point last_flush_ = Clock::now();
};

// Standard output, or -o FILE. Errors: to_file()'s.
Result<Output> open_output(const Options& options);

}  // namespace probed::client
