// Records to JSON text. Asio thread (or any other: no state). std::to_chars and appends only.
#include "daemon/events/encode.hpp"

#include <array>
#include <charconv>
#include <cstring>

#include "daemon/events/packed.hpp"

namespace probed::events {
namespace {

template <class T>
void append_number(std::string& out, T value) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

void append_hex_string(std::string& out, std::uint64_t value) {
  std::array<char, 24> text{'"', '0', 'x'};
  char* const end = std::to_chars(text.data() + 3, text.data() + text.size(), value, 16).ptr;
  *end = '"';
  out.append(text.data(), end + 1);
}

// ---- strings ----

constexpr std::string_view kHex = "0123456789abcdef";

void append_unit(std::string& out, unsigned unit) {
  const std::array<char, 6> text{'\\',           'u', kHex[unit >> 12 & 15], kHex[unit >> 8 & 15], kHex[unit >> 4 & 15],
                                 kHex[unit & 15]};
  out.append(text.data(), text.size());
}

void append_escape(std::string& out, unsigned char c) {
  constexpr char kControls[] = {'b', 't', 'n', 0, 'f', 'r'};  // from 8 on; 11, \v, has none
  if (c == '"' || c == '\\') return static_cast<void>(out.append({'\\', static_cast<char>(c)}));
  if (c >= 8 && c <= 13 && c != 11) return static_cast<void>(out.append({'\\', kControls[c - 8u]}));
  append_unit(out, c);
}

// Bytes that JSON takes as they are.
constexpr auto kPlain = [] {
  std::array<bool, 256> plain{};
  for (unsigned c = 0x20; c < 0x80; ++c) plain[c] = c != '"' && c != '\\';
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

// ---- values ----

struct Symbols {
  Symbolizer symbolize;
  const void* context;
};

void append_symbol(std::string& out, std::uint64_t address, Symbols symbols) {
  const std::string text = symbols.symbolize ? symbols.symbolize(symbols.context, address) : std::string();
  if (text.empty()) return append_hex_string(out, address);
  append_json_string(out, text);
}

void append_element(std::string& out, const lang::Type& type, PackedReader& packed, Symbols symbols) {
  using lang::BaseType;
  if (!packed.present()) return static_cast<void>(out.append("null"));
  if (is_string(type.base)) return append_json_string(out, packed.string());
  const std::uint64_t value = packed.value();
  if (type.bitfield) return append_number(out, value);
  if (is_hexadecimal(type.base)) return append_hex_string(out, value);
  if (is_signed(type.base)) return append_number(out, static_cast<std::int64_t>(value));
  if (type.base == BaseType::symbol) return append_symbol(out, value, symbols);
  if (type.base != BaseType::chr) return append_number(out, value);
  const char c = static_cast<char>(value);
  append_json_string(out, {&c, 1});
}

void append_value(std::string& out, const lang::Type& type, PackedReader& packed, Symbols symbols) {
  if (!type.array) return append_element(out, type, packed, symbols);
  if (!packed.present()) return static_cast<void>(out.append("null"));
  out.push_back('[');
  for (std::uint16_t n = packed.count(), i = 0; i < n && !packed.rest().empty(); ++i) {
    if (i > 0) out.push_back(',');
    append_element(out, type, packed, symbols);
  }
  out.push_back(']');
}

}  // namespace

void append_json_string(std::string& out, std::string_view bytes) {
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* const end = p + bytes.size();
  out.push_back('"');
  while (p < end) {
    const auto* run = p;
    while (run < end && kPlain[*run]) ++run;
    out.append(reinterpret_cast<const char*>(p), run - p);
    p = run;
    if (p == end) break;
    const std::size_t length = *p < 0x80 ? 0 : utf8_length(p, static_cast<std::size_t>(end - p));
    if (length > 0) {
      out.append(reinterpret_cast<const char*>(p), length);
      p += length;
    } else if (*p >= 0x80) {
      append_unit(out, 0xdc00u + *p++);
    } else {
      append_escape(out, *p++);
    }
  }
  out.push_back('"');
}

EventSchema make_schema(std::string_view full_name, std::string_view symbol_and_offset,
                        std::span<const lang::FetchArg> args) {
  EventSchema schema;
  append_json_string(schema.probe_json, full_name);
  append_json_string(schema.symbol_json, symbol_and_offset);
  schema.args.assign(args.begin(), args.end());
  for (const lang::FetchArg& arg : args) append_json_string(schema.arg_names_json.emplace_back(), arg.name);
  return schema;
}

void append_event_json(std::string& out, const EventSchema& schema, const RecordHeader& header,
                       std::span<const std::byte> packed, Symbolizer symbolize, const void* context) {
  out.append("{\"probe\":").append(schema.probe_json).append(",\"id\":");
  append_number(out, number(header.probe));
  out.append(",\"pid\":");
  append_number(out, header.pid);
  out.append(",\"tid\":");
  append_number(out, header.tid);
  out.append(",\"comm\":");
  append_json_string(out, {header.comm, ::strnlen(header.comm, sizeof header.comm)});
  out.append(",\"cpu\":");
  append_number(out, header.cpu);
  out.append(",\"time\":");
  append_number(out, header.time);
  out.append(",\"ip\":");
  append_hex_string(out, header.ip);
  out.append(",\"symbol\":").append(schema.symbol_json).append(",\"args\":{");
  PackedReader reader(packed);
  for (std::size_t i = 0; i < schema.args.size(); ++i) {
    if (i > 0) out.push_back(',');
    out.append(schema.arg_names_json[i]).push_back(':');
    append_value(out, schema.args[i].type, reader, {symbolize, context});
  }
  out.append("}}");
}

}  // namespace probed::events
