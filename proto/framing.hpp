// Where one message ends and the next begins on a byte stream.
//
// Two framings: lines (one JSON text each, ended by LF; blank lines mean nothing), and the editors' one (header lines
// ended by CRLF with Content-Length, an empty line, then so many bytes). The first bytes of a stream that are not blank
// decide, once: "{" or "[", as every message begins, or "Content-". Anything else is another protocol, of which nothing
// is read.
//
// Thread: one owner. Memory: at most the longest message plus one read.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/result.hpp"

namespace probed::proto {

inline constexpr std::size_t kMaxMessage = 1 << 20;  // bytes of one message's JSON text
inline constexpr std::size_t kMaxHeader = 4096;      // bytes of one header block

enum class Framing { undecided, lines, content_length };

class FrameReader {
 public:
  explicit FrameReader(std::size_t max_message = kMaxMessage) : max_(max_message) {}

  // Appends what was read. Invalidates earlier views.
  void feed(std::string_view bytes);

  // The next whole message, valid until the next feed; nullopt: more bytes are needed.
  // Errors: message_too_long, bad_message (another protocol, a header that can't be understood). After an error the
  // stream has no known next message and must be given up; every further call repeats the error.
  Result<std::optional<std::string_view>> next();
  // What is left when the stream has ended: a last line without its LF is a message, half of anything else is not.
  std::optional<std::string_view> rest();

  Framing framing() const { return framing_; }
  std::size_t buffered() const { return buffer_.size() - begin_; }

 private:
  using Next = Result<std::optional<std::string_view>>;
  std::string_view view() const { return std::string_view(buffer_).substr(begin_); }
  Result<void> decide();
  Next next_line();
  Next next_counted();
  Next too_long();
  Result<void> read_header(std::string_view block);
  void consume(std::size_t size);

  std::size_t max_;
  std::string buffer_;
  std::size_t begin_ = 0;    // of what isn't consumed yet
  std::size_t scanned_ = 0;  // bytes behind begin_ known to hold no end of line (lines) or of header
  Framing framing_ = Framing::undecided;
  std::optional<std::size_t> length_;  // content_length: of the body that comes next
  std::optional<Error> broken_;
};

// What goes in front of (header) and behind (trailer) a message of `size` bytes.
std::string frame_header(Framing framing, std::size_t size);
std::string_view frame_trailer(Framing framing);

}  // namespace probed::proto
