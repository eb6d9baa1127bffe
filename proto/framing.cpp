// See framing.hpp.
#include "proto/framing.hpp"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace probed::proto {
namespace {

constexpr std::string_view kLengthName = "Content-Length:";
constexpr std::string_view kHeaderStart = "Content-";  // of every header that the editors' framing has
constexpr std::string_view kBlank = " \t\r\n";

bool same_letters(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

std::string_view trimmed(std::string_view s) {
  const auto first = s.find_first_not_of(kBlank);
  if (first == s.npos) return {};
  return s.substr(first, s.find_last_not_of(kBlank) - first + 1);
}

// Bytes up to and including the empty line that ends a header block; npos: not all there yet. Lone LFs are taken too:
// people type headers by hand.
std::size_t header_end(std::string_view s, std::size_t from) {
  for (auto lf = s.find('\n', from); lf != s.npos; lf = s.find('\n', lf + 1)) {
    const auto rest = s.substr(lf + 1);
    if (rest.starts_with("\n")) return lf + 2;
    if (rest.starts_with("\r\n")) return lf + 3;
  }
  return std::string_view::npos;
}

Error bad_header(std::string why) {
  return {Reason::bad_message, std::move(why),
          "each message needs a header \"Content-Length: BYTES\", an empty line, then that many bytes of JSON"};
}

}  // namespace

void FrameReader::feed(std::string_view bytes) {
  constexpr std::size_t kKeep = 256 * 1024;  // an idle connection need not hold on to a long message's memory
  if (begin_ == buffer_.size() && buffer_.capacity() > kKeep) buffer_ = std::string();
  begin_ = std::min(begin_, buffer_.size());
  // Moving the rest to the front only when it is the smaller part keeps the cost linear.
  if (begin_ >= buffer_.size() - begin_) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(bytes);
}

void FrameReader::consume(std::size_t size) {
  begin_ += size;
  scanned_ = 0;
}

// What a stream of another protocol begins with, to be shown.
static std::string beginning(std::string_view s) {
  constexpr std::size_t kShown = 16;
  std::string shown(s.substr(0, std::min(kShown, s.find_first_of("\r\n"))));
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return shown;
}

// A web page can make a browser send any text to a port that somebody forwards to the socket: below a request line and
// headers, which begin neither as a message nor as a header of ours (RFC 9110, 5.6.2: a method is a token). So the
// first bytes decide whether anything of the stream is read at all.
Result<void> FrameReader::decide() {
  const auto start = std::min(view().find_first_not_of(kBlank), view().size());
  consume(start);
  const auto s = view();
  if (s.empty()) return {};
  const auto length = std::min(s.size(), kHeaderStart.size());
  if (s[0] == '{' || s[0] == '[')
    framing_ = Framing::lines;
  else if (!same_letters(s.substr(0, length), kHeaderStart.substr(0, length)))
    return Error{Reason::bad_message, "the connection begins with \"" + beginning(s) + "\", which is not this protocol",
                 "it begins with a message, { or [, or with a header \"Content-Length: BYTES\"; see PROTOCOL.md"};
  else if (length == kHeaderStart.size())
    framing_ = Framing::content_length;
  return {};
}

FrameReader::Next FrameReader::next() {
  if (broken_) return *broken_;
  if (framing_ == Framing::undecided)
    if (auto known = decide(); !known) return *(broken_ = known.error());
  if (framing_ == Framing::undecided) return std::optional<std::string_view>();
  auto result = framing_ == Framing::lines ? next_line() : next_counted();
  if (!result) broken_ = result.error();
  return result;
}

FrameReader::Next FrameReader::next_line() {
  while (true) {
    const auto s = view();
    const auto lf = s.find('\n', scanned_);
    if (std::min(lf, s.size()) > max_) return too_long();
    if (lf == s.npos) {
      scanned_ = s.size();
      return std::optional<std::string_view>();
    }
    consume(lf + 1);
    if (const auto line = s.substr(0, lf); line.find_first_not_of(kBlank) != line.npos) return std::optional(line);
  }
}

FrameReader::Next FrameReader::next_counted() {
  if (!length_) {
    const auto s = view();
    const auto end = header_end(s, scanned_);
    if (std::min(end, s.size()) > kMaxHeader)
      return bad_header("a message's header is longer than " + std::to_string(kMaxHeader) + " bytes");
    if (end == s.npos) {
      scanned_ = s.size() < 2 ? 0 : s.size() - 2;  // the empty line may be cut in two
      return std::optional<std::string_view>();
    }
    if (auto read = read_header(s.substr(0, end)); !read) return std::move(read).error();
    consume(end);
  }
  if (*length_ > max_) return too_long();
  const auto s = view();
  if (s.size() < *length_) return std::optional<std::string_view>();
  consume(*length_);
  return std::optional(s.substr(0, *std::exchange(length_, std::nullopt)));
}

// Of the editors' headers only Content-Length says what matters here; Content-Type is the other one. Any other header
// is of another protocol: HTTP's requests all have Host.
Result<void> FrameReader::read_header(std::string_view block) {
  while (!trimmed(block).empty()) {
    const auto lf = block.find('\n');
    const auto line = trimmed(block.substr(0, lf));
    block.remove_prefix(lf + 1);
    const auto name = line.substr(0, line.find(':') + 1);
    if (name.empty()) return bad_header("a header line has no colon");
    if (!same_letters(name.substr(0, kHeaderStart.size()), kHeaderStart) || name.find_first_of(kBlank) != name.npos)
      return bad_header("a message has a header \"" + beginning(name) + "\", which is not this protocol's");
    if (!same_letters(name, kLengthName)) continue;
    const auto digits = trimmed(line.substr(name.size()));
    std::size_t value = 0;
    const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (length_) return bad_header("a message has two Content-Length headers");
    if (ec == std::errc::invalid_argument || end != digits.data() + digits.size())
      return bad_header("a Content-Length is not a number");
    length_ = ec == std::errc::result_out_of_range ? std::string::npos : value;
  }
  if (!length_) return bad_header("a message has no Content-Length header");
  return {};
}

FrameReader::Next FrameReader::too_long() {
  return Error{Reason::message_too_long, "a message is longer than " + std::to_string(max_) + " bytes",
               "send fewer probes with one request; the connection is closed"};
}

std::optional<std::string_view> FrameReader::rest() {
  if (broken_ || framing_ != Framing::lines) return std::nullopt;
  const auto s = view();
  consume(s.size());
  if (s.find_first_not_of(kBlank) == s.npos) return std::nullopt;
  return s;
}

std::string frame_header(Framing framing, std::size_t size) {
  if (framing != Framing::content_length) return {};
  return "Content-Length: " + std::to_string(size) + "\r\n\r\n";
}

std::string_view frame_trailer(Framing framing) { return framing == Framing::content_length ? "" : "\n"; }

}  // namespace probed::proto
