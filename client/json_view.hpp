// Looking into JSON text in place: nothing is copied, nothing is re-serialised.
//
// The client reads JSON through views and not through a document tree for two reasons. Events must be handed on byte
// for byte (64-bit integers, key order), and event strings may hold lone surrogates (U+DC80..U+DCFF stand for bytes
// that are no UTF-8), which common JSON libraries refuse. Pure; a view is valid as long as the text it looks into.
//
// The reader is lenient: it finds the structure of well-formed JSON quickly and never reads outside its text whatever
// the text is, but it does not prove that the text is well-formed. Malformed text yields absent values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace probed::client {

namespace json {

// Each returns a position past what it skipped, or nullptr when the text ends too early or is no JSON there.
const char* skip_space(const char* at, const char* end);
const char* skip_string(const char* at, const char* end);  // at: the opening quote
const char* skip_value(const char* at, const char* end);

// Appends the bytes that the inside of a JSON string stands for. Lone surrogates U+DC80..U+DCFF become the byte they
// stand for; other lone surrogates become U+FFFD.
void append_decoded(std::string& out, std::string_view inside_of_string);

}  // namespace json

class JsonView {
 public:
  JsonView() = default;  // absent
  // Text that begins (after white space) with a value; whatever follows the value is ignored.
  explicit JsonView(std::string_view text);

  bool exists() const { return begin_ != nullptr; }
  bool is_object() const { return exists() && *begin_ == '{'; }
  bool is_array() const { return exists() && *begin_ == '['; }
  bool is_string() const { return exists() && *begin_ == '"'; }
  bool is_null() const { return exists() && *begin_ == 'n'; }
  bool is_number() const { return exists() && (*begin_ == '-' || (*begin_ >= '0' && *begin_ <= '9')); }

  // The value's exact bytes; empty when absent or cut short.
  std::string_view text() const;
  // The member's value; absent when this is no object or has no such member. `key` is compared with the undecoded key.
  JsonView operator[](std::string_view key) const;

  // The string's bytes, decoded; empty when this is no string.
  std::string string() const;
  // The undecoded text between the quotes; empty when this is no string.
  std::string_view raw_string() const;
  // Absent when this is no integer, or one that does not fit.
  std::optional<std::uint64_t> u64() const;
  std::uint64_t u64_or(std::uint64_t fallback) const { return u64().value_or(fallback); }
  bool boolean_or(bool fallback) const;

  // Calls visit(JsonView element) for each; stops when it returns false. False: the array was malformed or no array.
  template <class Visit>
  bool each_element(Visit visit) const;
  // Calls visit(std::string_view undecoded_key, JsonView value) for each; stops when it returns false.
  template <class Visit>
  bool each_member(Visit visit) const;

 private:
  friend class JsonWalker;
  JsonView(const char* begin, const char* end) : begin_(begin), end_(end) {}

  const char* begin_ = nullptr;  // first byte of the value
  const char* end_ = nullptr;    // end of the surrounding text, at or after the end of the value
};

// Walks the members of one object or the elements of one array, front to back, in one pass: a value that the caller has
// already walked itself (and says where it ended) is not scanned again.
class JsonWalker {
 public:
  explicit JsonWalker(JsonView container);

  // Goes on to the next element (arrays) or member (objects). False: there is none, or the text is malformed.
  bool next();
  std::string_view key() const { return key_; }  // undecoded
  JsonView value() const { return {at_, end_}; }
  // Says that the caller knows where the current value ends; `past` must lie inside the container's text.
  void resume_at(const char* past) { past_value_ = past; }
  // After next() returned false: past the container's closing bracket, or nullptr when the text was malformed.
  const char* finished() const { return finished_; }

 private:
  bool close_or_fail(char c);
  bool read_key();

  const char* at_ = nullptr;          // where the current value begins
  const char* past_value_ = nullptr;  // where it ends, when known
  const char* end_ = nullptr;
  const char* finished_ = nullptr;
  std::string_view key_;
  char close_ = 0;
  bool first_ = true;
};

template <class Visit>
bool JsonView::each_element(Visit visit) const {
  if (!is_array()) return false;
  JsonWalker walker(*this);
  while (walker.next())
    if (!visit(walker.value())) return true;
  return walker.finished() != nullptr;
}

template <class Visit>
bool JsonView::each_member(Visit visit) const {
  if (!is_object()) return false;
  JsonWalker walker(*this);
  while (walker.next())
    if (!visit(walker.key(), walker.value())) return true;
  return walker.finished() != nullptr;
}

}  // namespace probed::client
