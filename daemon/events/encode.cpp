// Records to JSON text. Asio thread.
//
// Text is written through a pointer into a buffer that has room for the longest it can become, checked once for each
// argument: std::string::append costs more than the digits. What is the same for all hits of a probe in one thread is
// kept from the last one.
#include "daemon/events/encode.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "daemon/events/packed.hpp"

namespace probed::events {
namespace {

constexpr std::size_t kLongestNumber = 24;    // quotes and 0x included
constexpr std::size_t kLongestFloating = 24;  // -1.7976931348623157e+308

// "00" to "99"
constexpr auto kPairs = [] {
  std::array<char, 200> pairs{};
  for (std::size_t i = 0; i < 100; ++i) {
    pairs[2 * i] = static_cast<char>('0' + i / 10);
    pairs[2 * i + 1] = static_cast<char>('0' + i % 10);
  }
  return pairs;
}();

char* put_pair(char* at, std::uint32_t value) {
  std::memcpy(at, &kPairs[2 * value], 2);
  return at + 2;
}

// Exactly 8 digits: no step waits for the one before.
char* put_8_digits(char* at, std::uint32_t value) {
  const std::uint32_t high = value / 10000, low = value % 10000;
  at = put_pair(put_pair(at, high / 100), high % 100);
  return put_pair(put_pair(at, low / 100), low % 100);
}

char* put_number(char* at, std::uint64_t value) {
  constexpr std::uint64_t k8Digits = 100'000'000;
  if (value < 10) return *at = static_cast<char>('0' + value), at + 1;
  // Times and most pointers: 16 digits and some in front.
  if (value >= k8Digits && value < k8Digits * k8Digits * 100) {
    const std::uint64_t front = value / k8Digits;
    if (front < k8Digits)
      at = std::to_chars(at, at + kLongestNumber, static_cast<std::uint32_t>(front)).ptr;
    else
      at = put_8_digits(std::to_chars(at, at + kLongestNumber, static_cast<std::uint32_t>(front / k8Digits)).ptr,
                        static_cast<std::uint32_t>(front % k8Digits));
    return put_8_digits(at, static_cast<std::uint32_t>(value % k8Digits));
  }
  return std::to_chars(at, at + kLongestNumber, value).ptr;
}

char* put_number(char* at, std::int64_t value) {
  if (value >= 0) return put_number(at, static_cast<std::uint64_t>(value));
  *at = '-';
  return put_number(at + 1, 0 - static_cast<std::uint64_t>(value));
}

char* put_text(char* at, std::string_view text) {
  std::memcpy(at, text.data(), text.size());
  return at + text.size();
}

char* put_hex_string(char* at, std::uint64_t value) {
  at = put_text(at, "\"0x");
  at = std::to_chars(at, at + kLongestNumber, value, 16).ptr;
  *at = '"';
  return at + 1;
}

// ---- strings ----

constexpr std::string_view kHex = "0123456789abcdef";

char* put_unit(char* at, unsigned unit) {
  const std::array<char, 6> text{'\\',           'u', kHex[unit >> 12 & 15], kHex[unit >> 8 & 15], kHex[unit >> 4 & 15],
                                 kHex[unit & 15]};
  return put_text(at, {text.data(), text.size()});
}

char* put_escape(char* at, unsigned char c) {
  constexpr char kControls[] = {'b', 't', 'n', 0, 'f', 'r'};  // from 8 on; 11, \v, has none
  const bool is_control = c >= 8 && c <= 13 && c != 11;
  if (c != '"' && c != '\\' && !is_control) return put_unit(at, c);
  *at++ = '\\';
  *at++ = is_control ? kControls[c - 8u] : static_cast<char>(c);
  return at;
}

// Bytes that JSON takes as they are, and no terminal obeys.
constexpr auto kPlain = [] {
  std::array<bool, 256> plain{};
  for (unsigned c = 0x20; c < 0x7f; ++c) plain[c] = c != '"' && c != '\\';
  return plain;
}();

// Length of the well-formed UTF-8 sequence that starts here (Unicode 15, table 3-7); 0: none does.
std::size_t utf8_length(const unsigned char* p, std::size_t left) {
  const unsigned first = *p;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || left < length) return 0;
  for (std::size_t k = 1; k < length; ++k)
    if ((p[k] & 0xc0) != 0x80) return 0;
  const unsigned second = p[1];
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
  if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
  return length;
}

constexpr std::size_t room_for_string(std::size_t size) { return 6 * size + 2; }  // every byte a \\uXXXX

// Needs room_for_string(bytes.size()).
char* put_json_string(char* at, std::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* const end = p + bytes.size();
  *at++ = '"';
  while (p < end) {
    const auto* run = p;
    while (run < end && kPlain[*run]) ++run;
    at = put_text(at, {reinterpret_cast<const char*>(p), static_cast<std::size_t>(run - p)});
    p = run;
    if (p == end) break;
    const std::size_t length = *p < 0x80 ? 0 : utf8_length(p, static_cast<std::size_t>(end - p));
    const bool is_control = length == 2 && p[0] == 0xc2 && p[1] < 0xa0;  // U+0080 to U+009F
    if (is_control) {
      at = put_unit(at, p[1]);
      p += length;
    } else if (length > 0) {
      at = put_text(at, {reinterpret_cast<const char*>(p), length});
      p += length;
    } else if (*p >= 0x80) {
      at = put_unit(at, 0xdc00u + *p++);
    } else {
      at = put_escape(at, *p++);
    }
  }
  *at = '"';
  return at + 1;
}

}  // namespace

void append_json_string(std::string& out, std::string_view bytes) {
  const std::size_t before = out.size();
  out.resize(before + room_for_string(bytes.size()));
  out.resize(static_cast<std::size_t>(put_json_string(out.data() + before, bytes) - out.data()));
}

namespace {

// JSON has no words for what isn't finite: those are strings.
char* put_floating(char* at, lang::BaseType type, std::uint64_t bits) {
  const double value = type == lang::BaseType::f32 ? double{std::bit_cast<float>(static_cast<std::uint32_t>(bits))}
                                                   : std::bit_cast<double>(bits);
  if (std::isnan(value)) return put_text(at, "\"nan\"");
  if (std::isinf(value)) return put_text(at, value < 0 ? "\"-inf\"" : "\"inf\"");
  return type == lang::BaseType::f32 ? std::to_chars(at, at + kLongestFloating, static_cast<float>(value)).ptr
                                     : std::to_chars(at, at + kLongestFloating, value).ptr;
}

}  // namespace

// ---- events ---------------------------------------------------------------------------------------------------------

// Up to `at_` the buffer is written; need() may move it.
void EventEncoder::need(std::size_t room) {
  const auto used = static_cast<std::size_t>(at_ - buffer_.data());
  if (buffer_.size() - used >= room) return;
  buffer_.resize(2 * (used + room));
  at_ = buffer_.data() + used;
}

void EventEncoder::put_symbol(std::uint64_t address, const Symbols& symbols) {
  const std::string text = symbols.symbolize ? symbols.symbolize(symbols.context, address) : std::string();
  need(room_for_string(text.size()) + kLongestNumber);
  at_ = text.empty() ? put_hex_string(at_, address) : put_json_string(at_, text);
}

// By its name, when it has one.
void EventEncoder::put_named(const lang::Type& type, std::uint64_t value) {
  const auto as_signed = static_cast<std::int64_t>(value);
  const std::string* name = type.names->name_of(as_signed);
  if (name) {
    need(room_for_string(name->size()) + kLongestNumber);
    at_ = put_json_string(at_, *name);
  } else {
    const bool is_number_signed = type.bitfield ? type.bitfield->is_signed : is_signed(type.base);
    at_ = is_number_signed ? put_number(at_, as_signed) : put_number(at_, value);
  }
}

// Has room for a number.
void EventEncoder::put_element(const lang::Type& type, PackedReader& packed, const Symbols& symbols) {
  using lang::BaseType;
  if (!packed.present()) return void(at_ = put_text(at_, "null"));
  if (is_string(type.base)) {
    const std::string_view text = packed.string();
    need(room_for_string(text.size()));
    return void(at_ = put_json_string(at_, text));
  }
  const std::uint64_t value = packed.value();
  if (type.names) return put_named(type, value);
  if (type.bitfield && !type.bitfield->is_signed && type.base != BaseType::boolean)
    return void(at_ = put_number(at_, value));
  if (is_hexadecimal(type.base)) return void(at_ = put_hex_string(at_, value));
  if (is_signed(type.base)) return void(at_ = put_number(at_, static_cast<std::int64_t>(value)));
  if (type.base == BaseType::symbol) return put_symbol(value, symbols);
  if (is_floating(type.base)) return void(at_ = put_floating(at_, type.base, value));
  if (type.base == BaseType::boolean) return void(at_ = put_text(at_, value != 0 ? "true" : "false"));
  if (type.base != BaseType::chr) return void(at_ = put_number(at_, value));
  const char c = static_cast<char>(value);
  at_ = put_json_string(at_, {&c, 1});
}

void EventEncoder::put_array(const lang::Type& type, PackedReader& packed, const Symbols& symbols) {
  if (!packed.present()) return void(at_ = put_text(at_, "null"));
  *at_++ = '[';
  for (std::uint16_t n = packed.count(), i = 0; i < n && !packed.rest().empty(); ++i) {
    if (i > 0) *at_++ = ',';
    put_element(type, packed, symbols);
    need(kLongestNumber + 4);  // the next element, a comma, and what ends the event
  }
  *at_++ = ']';
}

// What stays the same from one hit to the next, mostly.
EventEncoder::Frame& EventEncoder::frame_of(const EventSchema& schema, const RecordHeader& header) {
  Frame& frame = frames_[(number(header.probe) * 31u + static_cast<unsigned>(header.tid)) % frames_.size()];
  const RecordHeader& of = frame.of;
  if (of.probe == header.probe && of.tid == header.tid && of.pid == header.pid && of.ip == header.ip &&
      std::memcmp(of.comm, header.comm, sizeof of.comm) == 0 && !frame.front.empty())
    return frame;
  frame.of = header;
  const ProbeId shown = number(schema.shown) != 0 ? schema.shown : header.probe;
  std::array<char, kLongestNumber> digits;
  const auto text = [&](char* end) { return std::string_view(digits.data(), end); };
  frame.front = "{\"probe\":" + schema.probe_json + ",\"id\":";
  frame.front.append(text(put_number(digits.data(), std::uint64_t{number(shown)}))).append(",\"pid\":");
  frame.front.append(text(put_number(digits.data(), std::int64_t{header.pid}))).append(",\"tid\":");
  frame.front.append(text(put_number(digits.data(), std::int64_t{header.tid}))).append(",\"comm\":");
  append_json_string(frame.front, {header.comm, ::strnlen(header.comm, sizeof header.comm)});
  frame.front.append(",\"cpu\":");
  frame.back = ",\"ip\":";
  frame.back.append(text(put_hex_string(digits.data(), header.ip)));
  if (schema.func_json.empty())
    frame.back.append(",\"symbol\":").append(schema.symbol_json).append(",\"args\":{");
  else
    frame.back.append(",\"symbol\":");
  return frame;
}

// Of the place that a return leads to: its symbol, else its address.
const std::string& EventEncoder::name_of(const RecordHeader& header, const Symbols& symbols) {
  Name& name = names_[(header.ret_ip ^ number(header.probe) * 31u) % names_.size()];
  if (name.probe == header.probe && name.address == header.ret_ip) return name.json;
  name = {header.probe, header.ret_ip, {}};
  const std::string text = symbols.symbolize ? symbols.symbolize(symbols.context, header.ret_ip) : std::string();
  std::array<char, kLongestNumber> digits;
  if (text.empty())
    name.json.assign(digits.data(), put_hex_string(digits.data(), header.ret_ip));
  else
    append_json_string(name.json, text);
  return name.json;
}

// What only returns have, and where the arguments begin.
void EventEncoder::put_return(const EventSchema& schema, const RecordHeader& header, const std::string& name) {
  need(name.size() + schema.func_json.size() + 6 * kLongestNumber);
  at_ = put_text(at_, name);
  at_ = put_text(at_, ",\"ret_ip\":");
  at_ = put_hex_string(at_, header.ret_ip);
  at_ = put_text(at_, ",\"func\":");
  at_ = put_text(at_, schema.func_json);
  at_ = put_text(at_, ",\"duration\":");
  at_ = put_number(at_, header.duration);
  if (header.tail_call != 0) at_ = put_text(at_, ",\"tail_call\":true");
  at_ = put_text(at_, ",\"args\":{");
}

void EventEncoder::put_argument(const EventSchema& schema, std::size_t i, PackedReader& reader,
                                const Symbols& symbols) {
  need(schema.arg_names_json[i].size() + kLongestNumber + 4);
  at_ = put_text(at_, schema.arg_names_json[i]);
  const lang::Type& type = schema.args[i].type;
  type.array ? put_array(type, reader, symbols) : put_element(type, reader, symbols);
}

// All arguments; of alternatives the one that is there, else a null in their place.
void EventEncoder::put_alternatives(const EventSchema& schema, PackedReader& reader, const Symbols& symbols) {
  std::array<std::optional<std::uint64_t>, lang::kMaxFetchArgs> numbers;  // of those that choose
  bool shown = false;
  for (std::size_t i = 0; i < schema.args.size(); ++i) {
    const EventSchema::Alternative& alternative = schema.alternatives[i];
    if (alternative.chooses)
      if (PackedReader ahead = reader; ahead.present()) numbers[i] = ahead.value();
    if (alternative.chooser == EventSchema::kNone) {
      put_argument(schema, i, reader, symbols);
      continue;
    }
    if (!alternative.lead_json.empty()) {
      need(alternative.lead_json.size());
      at_ = put_text(at_, alternative.lead_json);
      shown = false;
    }
    if (numbers[alternative.chooser] == schema.args[i].choice) {
      put_argument(schema, i, reader, symbols);
      need(alternative.end_json.size());
      at_ = put_text(at_, alternative.end_json);
      shown = true;
    } else {
      reader.skip(schema.args[i].type);
    }
    if (alternative.is_last && !shown) {
      need(kLongestNumber);
      at_ = put_text(at_, "null");
    }
  }
}

std::string_view EventEncoder::encode(const EventSchema& schema, const RecordHeader& header,
                                      std::span<const std::byte> packed, Symbolizer symbolize, const void* context) {
  const Symbols symbols{symbolize, context};
  const Frame& frame = frame_of(schema, header);
  at_ = buffer_.data();
  need(frame.front.size() + frame.back.size() + 4 * kLongestNumber);
  at_ = put_text(at_, frame.front);
  at_ = put_number(at_, std::uint64_t{header.cpu});
  at_ = put_text(at_, ",\"time\":");
  at_ = put_number(at_, header.time);
  at_ = put_text(at_, frame.back);
  if (!schema.func_json.empty()) put_return(schema, header, name_of(header, symbols));
  PackedReader reader(packed);
  if (schema.alternatives.empty())
    for (std::size_t i = 0; i < schema.args.size(); ++i) put_argument(schema, i, reader, symbols);
  else
    put_alternatives(schema, reader, symbols);
  need(schema.end_json.size());
  at_ = put_text(at_, schema.end_json);
  return {buffer_.data(), at_};
}

void append_event_json(std::string& out, const EventSchema& schema, const RecordHeader& header,
                       std::span<const std::byte> packed, Symbolizer symbolize, const void* context) {
  EventEncoder encoder;
  out.append(encoder.encode(schema, header, packed, symbolize, context));
}

}  // namespace probed::events
