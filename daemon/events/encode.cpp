// Records to JSON text. Asio thread.
//
// Text is written through a pointer into a buffer that has room for the longest it can become: std::string::append
// costs more than the digits. Once for an event that is made sure of for all that has a longest form, its schema's
// `room`; and once for each text and array. What is the same for all hits of a probe is kept as text that is copied in
// whole blocks, with what stays the same for a while in front of it: thread, CPU and a time's first digits.
#include "daemon/events/encode.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "daemon/events/digits.hpp"
#include "daemon/values/packed.hpp"

namespace probed::events {
namespace {

constexpr std::size_t kLongestFloating = 24;  // -1.7976931348623157e+308
static_assert(kLongestFloating <= kLongestNumber);

char* put_text(char* at, std::string_view text) {
  std::memcpy(at, text.data(), text.size());
  return at + text.size();
}

char* put_hex_string(char* at, std::uint64_t value) {
  at = put_hexadecimal(put_text(at, "\"0x"), value);
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
char* put_floating(char* at, values::BaseType type, std::uint64_t bits) {
  const double value = type == values::BaseType::f32 ? double{std::bit_cast<float>(static_cast<std::uint32_t>(bits))}
                                                     : std::bit_cast<double>(bits);
  if (std::isnan(value)) return put_text(at, "\"nan\"");
  if (std::isinf(value)) return put_text(at, value < 0 ? "\"-inf\"" : "\"inf\"");
  return type == values::BaseType::f32 ? std::to_chars(at, at + kLongestFloating, static_cast<float>(value)).ptr
                                       : std::to_chars(at, at + kLongestFloating, value).ptr;
}

}  // namespace

// ---- events ---------------------------------------------------------------------------------------------------------

// Room for so much more, and for what has been promised already: the schema's. Up to `at_` the buffer is written; this
// may move it.
void EventEncoder::need(std::size_t more) {
  const std::size_t room = more + promised_;
  const auto used = static_cast<std::size_t>(at_ - buffer_.data());
  if (buffer_.size() - used >= room) [[likely]]
    return;
  buffer_.resize(2 * (used + room));
  at_ = buffer_.data() + used;
}

void EventEncoder::put_symbol(std::uint64_t address, const Symbols& symbols) {
  const std::string text = symbols.symbolize ? symbols.symbolize(symbols.context, address) : std::string();
  need(room_for_string(text.size()));
  at_ = text.empty() ? put_hex_string(at_, address) : put_json_string(at_, text);
}

// By its name, when it has one.
void EventEncoder::put_named(const values::Type& type, std::uint64_t value) {
  const auto as_signed = static_cast<std::int64_t>(value);
  const std::string* name = type.names->name_of(as_signed);
  if (name) {
    need(room_for_string(name->size()));
    at_ = put_json_string(at_, *name);
  } else {
    const bool is_number_signed = type.bitfield ? type.bitfield->is_signed : values::is_signed(type.base);
    at_ = is_number_signed ? put_number(at_, as_signed) : put_number(at_, value);
  }
}

// Has room for a number.
void EventEncoder::put_element(Form form, const values::Type& type, values::PackedReader& packed,
                               const Symbols& symbols) {
  if (!packed.present()) return void(at_ = put_text(at_, "null"));
  if (form == Form::text) {
    const std::string_view text = packed.string();
    need(room_for_string(text.size()));
    return void(at_ = put_json_string(at_, text));
  }
  const std::uint64_t value = packed.value();
  switch (form) {
    case Form::hexadecimal: at_ = put_hex_string(at_, value); break;
    case Form::with_sign: at_ = put_number(at_, static_cast<std::int64_t>(value)); break;
    case Form::named: put_named(type, value); break;
    case Form::symbol: put_symbol(value, symbols); break;
    case Form::floating: at_ = put_floating(at_, type.base, value); break;
    case Form::boolean: at_ = put_text(at_, value != 0 ? "true" : "false"); break;
    case Form::character: {
      const char c = static_cast<char>(value);
      at_ = put_json_string(at_, {&c, 1});
      break;
    }
    case Form::text:
    case Form::plain: at_ = put_number(at_, value); break;
  }
}

void EventEncoder::put_array(Form form, const values::Type& type, values::PackedReader& packed,
                             const Symbols& symbols) {
  if (!packed.present()) return void(at_ = put_text(at_, "null"));
  *at_++ = '[';
  for (std::uint16_t n = packed.count(), i = 0; i < n && !packed.rest().empty(); ++i) {
    need(kLongestNumber + 1);
    if (i > 0) *at_++ = ',';
    put_element(form, type, packed, symbols);
  }
  *at_++ = ']';
}

// What stays the same from one hit to the next, mostly.
EventEncoder::Frame& EventEncoder::frame_of(const EventSchema& schema, const RecordHeader& header) {
  Frame& frame = frames_[(number(header.probe) * 31u + static_cast<unsigned>(header.tid)) % frames_.size()];
  const RecordHeader& of = frame.of;
  const std::uint64_t leading = header.time / digits::k8Digits;
  const bool same_thread = of.probe == header.probe && of.tid == header.tid && of.pid == header.pid &&
                           of.ip == header.ip && std::memcmp(of.comm, header.comm, sizeof of.comm) == 0 &&
                           frame.front.size() > 0;
  if (same_thread && of.cpu == header.cpu && frame.leading == leading) [[likely]]
    return frame;
  frame.of = header;
  frame.leading = leading;
  const ProbeId shown = number(schema.shown) != 0 ? schema.shown : header.probe;
  std::array<char, kLongestNumber> digits;
  const auto text = [&](char* end) { return std::string_view(digits.data(), end); };
  const auto decimal = [&](auto value) { return text(put_number(digits.data(), value)); };
  std::string front = "{\"probe\":" + schema.probe_json + ",\"id\":";
  front.append(decimal(std::uint64_t{number(shown)})).append(",\"pid\":");
  front.append(decimal(std::int64_t{header.pid})).append(",\"tid\":");
  front.append(decimal(std::int64_t{header.tid})).append(",\"comm\":");
  append_json_string(front, {header.comm, ::strnlen(header.comm, sizeof header.comm)});
  front.append(",\"cpu\":").append(decimal(std::uint64_t{header.cpu})).append(",\"time\":");
  if (leading != 0) front.append(decimal(leading));
  frame.front = BlockText(std::move(front));
  if (same_thread) return frame;
  std::string back = ",\"ip\":";
  back.append(text(put_hex_string(digits.data(), header.ip))).append(",\"symbol\":");
  if (schema.func_json.empty()) back.append(schema.symbol_json).append(",\"args\":{");
  frame.back = BlockText(std::move(back));
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

void EventEncoder::put_argument(const EventSchema& schema, std::size_t i, values::PackedReader& reader,
                                const Symbols& symbols) {
  const EventSchema::Argument& argument = schema.arguments[i];
  at_ = argument.name.put(at_);
  const values::Type& type = schema.args[i].type;
  argument.is_array ? put_array(argument.form, type, reader, symbols)
                    : put_element(argument.form, type, reader, symbols);
}

// All arguments; of alternatives the one that is there, else a null in their place.
void EventEncoder::put_alternatives(const EventSchema& schema, values::PackedReader& reader, const Symbols& symbols) {
  std::array<std::optional<std::uint64_t>, lang::kMaxFetchArgs> numbers;  // of those that choose
  bool shown = false;
  for (std::size_t i = 0; i < schema.args.size(); ++i) {
    const EventSchema::Alternative& alternative = schema.alternatives[i];
    if (alternative.chooses)
      if (values::PackedReader ahead = reader; ahead.present()) numbers[i] = ahead.value();
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
    if (alternative.is_last && !shown) at_ = put_text(at_, "null");
  }
}

std::string_view EventEncoder::encode(const EventSchema& schema, const RecordHeader& header,
                                      std::span<const std::byte> packed, Symbolizer symbolize, const void* context) {
  const Symbols symbols{symbolize, context};
  const Frame& frame = frame_of(schema, header);
  at_ = buffer_.data();
  promised_ = schema.room;
  need(frame.front.size() + frame.back.size() + kLongestNumber);
  at_ = frame.front.put(at_);
  // A time's last 8 digits, the leading ones being the frame's.
  at_ = frame.leading != 0 ? put_8_digits(at_, header.time % digits::k8Digits) : put_number(at_, header.time);
  at_ = frame.back.put(at_);
  if (!schema.func_json.empty()) put_return(schema, header, name_of(header, symbols));
  values::PackedReader reader(packed);
  if (schema.alternatives.empty())
    for (std::size_t i = 0; i < schema.arguments.size(); ++i) put_argument(schema, i, reader, symbols);
  else
    put_alternatives(schema, reader, symbols);
  at_ = schema.end.put(at_);
  return {buffer_.data(), at_};
}

void append_event_json(std::string& out, const EventSchema& schema, const RecordHeader& header,
                       std::span<const std::byte> packed, Symbolizer symbolize, const void* context) {
  EventEncoder encoder;
  out.append(encoder.encode(schema, header, packed, symbolize, context));
}

}  // namespace probed::events
