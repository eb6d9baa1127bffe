// See utf8.hpp.
#include "client/utf8.hpp"

namespace probed::client::utf8 {
namespace {

struct Lead {
  unsigned char mask, bits;
  std::size_t length;
  std::uint32_t lowest;  // smaller codes in this form are overlong
};
constexpr Lead kLeads[] = {{0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};

Character decode_long(std::string_view bytes, const Lead& lead) {
  if (bytes.size() < lead.length) return {};
  std::uint32_t code = static_cast<unsigned char>(bytes[0]) & static_cast<unsigned char>(~lead.mask);
  for (std::size_t i = 1; i < lead.length; ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    if ((c & 0xc0) != 0x80) return {};
    code = (code << 6) | (c & 0x3f);
  }
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < lead.lowest || code > 0x10ffff || surrogate) return {};
  return {code, lead.length, true};
}

}  // namespace

Character decode(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  if (first < 0x80) return {first, 1, true};
  for (const auto& lead : kLeads)
    if ((first & lead.mask) == lead.bits) return decode_long(bytes, lead);
  return {};
}

void append(std::string& out, std::uint32_t code) {
  const auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | ((code >> shift) & 0x3f))); };
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xc0 | (code >> 6)));
    tail(0);
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | (code >> 12)));
    tail(6), tail(0);
  } else {
    out.push_back(static_cast<char>(0xf0 | (code >> 18)));
    tail(12), tail(6), tail(0);
  }
}

}  // namespace probed::client::utf8
