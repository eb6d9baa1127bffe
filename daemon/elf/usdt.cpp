// See usdt.hpp.
#include "daemon/elf/usdt.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "arch/arch.hpp"

namespace probed::elf {
namespace {

constexpr std::uint64_t kMaxSection = 16u << 20;  // bytes
constexpr std::size_t kMaxCount = 100'000;        // probes of a file
constexpr std::size_t kMaxName = 256;             // bytes of PROVIDER or NAME
constexpr std::size_t kMaxArguments = 4096;       // bytes of a note's argument string
constexpr Elf64_Word kStapsdt = 3;                // n_type
constexpr std::string_view kOwner = "stapsdt";

bool is_printable(char c) { return c >= ' ' && c <= '~'; }

// What a stranger's file says goes into messages: one line, whatever it holds.
std::string printable(std::string_view text) {
  std::string out(text);
  std::ranges::replace_if(
      out, [](char c) { return !is_printable(c); }, '?');
  return out;
}

bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return is_printable(c) && c != ' '; });
}

// The next text up to its zero; false: there is none.
bool take_text(std::string_view& rest, std::size_t most, std::string& out) {
  const std::size_t end = rest.find('\0');
  if (end == rest.npos || end > most) return false;
  out = rest.substr(0, end);
  rest.remove_prefix(end + 1);
  return true;
}

// `base`: where section .stapsdt.base is; what prelink(8) moved since the note was written is seen by it. 0: unknown.
bool parse_note(std::string_view descriptor, std::uint64_t base, UsdtNote& out) {
  std::array<std::uint64_t, 3> words{};  // place, base, semaphore
  if (descriptor.size() < sizeof words) return false;
  std::memcpy(words.data(), descriptor.data(), sizeof words);
  const std::uint64_t moved = base != 0 ? base - words[1] : 0;
  out.place = {words[0] + moved};
  out.semaphore = {words[2] != 0 ? words[2] + moved : 0};
  std::string_view rest = descriptor.substr(sizeof words);
  if (!take_text(rest, kMaxName, out.provider) || !take_text(rest, kMaxName, out.name)) return false;
  if (!take_text(rest, kMaxArguments, out.arguments)) return false;
  out.arguments = printable(out.arguments);
  return is_name(out.provider) && is_name(out.name);
}

void parse_notes(std::string_view notes, std::uint64_t base, std::vector<UsdtNote>& out) {
  while (notes.size() >= sizeof(Elf64_Nhdr) && out.size() < kMaxCount) {
    Elf64_Nhdr header;
    std::memcpy(&header, notes.data(), sizeof header);
    const std::uint64_t descriptor = sizeof header + note_aligned(header.n_namesz), end = descriptor + header.n_descsz;
    if (end > notes.size()) return;
    const std::string_view owner = notes.substr(sizeof header, std::min<std::size_t>(header.n_namesz, kOwner.size()));
    UsdtNote note;
    if (header.n_type == kStapsdt && header.n_namesz == kOwner.size() + 1 && owner == kOwner &&
        parse_note(notes.substr(descriptor, header.n_descsz), base, note))
      out.push_back(std::move(note));
    notes.remove_prefix(std::min<std::uint64_t>(note_aligned(end), notes.size()));
  }
}

// One past the argument that begins the text: blanks inside brackets belong to it ("[sp, 12]").
std::size_t argument_end(std::string_view text) {
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[' || text[i] == '(') ++depth;
    if (text[i] == ']' || text[i] == ')') --depth;
    if (text[i] == ' ' && depth <= 0) return i;
  }
  return text.size();
}

template <class F>
void each_argument(std::string_view text, F f) {
  while (true) {
    const std::size_t start = text.find_first_not_of(' ');
    if (start == text.npos) return;
    text.remove_prefix(start);
    const std::size_t end = argument_end(text);
    f(text.substr(0, end));
    text.remove_prefix(end);
  }
}

// "-4", "8f"; false: no size of ours.
bool parse_size(std::string_view text, UsdtArgument& out) {
  if (text.ends_with('f')) {
    out.is_float = true;
    text.remove_suffix(1);
  }
  int size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  out.is_signed = size < 0;
  const int bytes = size < 0 ? -size : size;
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) return false;
  out.size = static_cast<std::uint8_t>(bytes);
  return true;
}

UsdtArgument parse_argument(std::string_view text) {
  UsdtArgument out;
  out.text = printable(text);
  const std::size_t at = text.find('@');
  // Old compilers' notes have operands alone: the register's width tells the size.
  if (at != text.npos && !parse_size(text.substr(0, at), out)) {
    out.why_not = "its size isn't one of 1, 2, 4 and 8 bytes";
    return out;
  }
  const auto operand = arch::native::parse_operand(text.substr(at == text.npos ? 0 : at + 1));
  if (!operand) {
    out.why_not = "its operand isn't understood";
    return out;
  }
  out.operand = *operand;
  if (operand->kind == arch::Operand::Kind::vector && operand->bits == 0)
    out.why_not = "it is in a register that can't be read";
  return out;
}

}  // namespace

std::vector<UsdtNote> read_usdt_notes(const Image& image) {
  std::vector<UsdtNote> notes;
  const Elf64_Shdr* section = image.section(".note.stapsdt");
  if (!section || section->sh_type != SHT_NOTE) return notes;
  const auto bytes = image.read_bytes(section->sh_offset, section->sh_size, kMaxSection);
  const Elf64_Shdr* base = image.section(".stapsdt.base");
  if (bytes)
    parse_notes({reinterpret_cast<const char*>(bytes->data()), bytes->size()}, base ? base->sh_addr : 0, notes);
  return notes;
}

std::vector<UsdtArgument> parse_usdt_arguments(std::string_view text) {
  std::vector<UsdtArgument> arguments;
  each_argument(text, [&](std::string_view argument) { arguments.push_back(parse_argument(argument)); });
  return arguments;
}

std::size_t count_usdt_arguments(std::string_view text) {
  std::size_t count = 0;
  each_argument(text, [&](std::string_view) { ++count; });
  return count;
}

Result<values::Placement> usdt_number(const UsdtSite& site, unsigned number) {
  using Step = values::PlaceStep::Code;
  using Kind = arch::Operand::Kind;
  auto found = usdt_argument(site, number);
  if (!found) return std::move(found).error();
  const UsdtArgument& argument = **found;
  const arch::Operand& operand = argument.operand;
  const std::string arg = "$arg" + std::to_string(number);
  if (argument.is_float || operand.kind == Kind::vector)
    return Error{Reason::bad_definition, arg + " is a floating-point number: it can't be cast", "write " + arg, {}};
  values::Placement out;
  const bool in_memory = operand.kind == Kind::memory;
  if (operand.base)
    out.steps.push_back({Step::load_register, 8, 0, *operand.base});
  else
    out.steps.push_back({Step::load_immediate, 8, 0, in_memory ? 0 : operand.number});
  if (in_memory && operand.index)
    out.steps.insert(out.steps.end(), std::size_t{1} << operand.scale, {Step::add_register, 8, 0, *operand.index});
  if (in_memory) out.steps.push_back({Step::dereference, argument.size, 0, operand.number});
  const unsigned width = operand.kind == Kind::value ? operand.bits / 8u : 8u;
  const auto size = static_cast<std::uint8_t>(std::min<unsigned>(argument.size, width));
  if (size != 8 || operand.shift != 0)
    out.steps.push_back({Step::cut, size, in_memory ? std::uint8_t{0} : operand.shift, 0, argument.is_signed});
  return out;
}

}  // namespace probed::elf
