// See frame.hpp.
#include "daemon/dwarf/frame.hpp"

#include <unordered_map>
#include <vector>

namespace probed::dwarf {
namespace {

constexpr std::size_t kMaxRemembered = 64;

enum Instruction : std::uint8_t {
  CFA_set_loc = 0x01,
  CFA_advance_loc1 = 0x02,
  CFA_advance_loc2 = 0x03,
  CFA_advance_loc4 = 0x04,
  CFA_offset_extended = 0x05,
  CFA_restore_extended = 0x06,
  CFA_undefined = 0x07,
  CFA_same_value = 0x08,
  CFA_register = 0x09,
  CFA_remember_state = 0x0a,
  CFA_restore_state = 0x0b,
  CFA_def_cfa = 0x0c,
  CFA_def_cfa_register = 0x0d,
  CFA_def_cfa_offset = 0x0e,
  CFA_def_cfa_expression = 0x0f,
  CFA_expression = 0x10,
  CFA_offset_extended_sf = 0x11,
  CFA_def_cfa_sf = 0x12,
  CFA_def_cfa_offset_sf = 0x13,
  CFA_val_offset = 0x14,
  CFA_val_offset_sf = 0x15,
  CFA_val_expression = 0x16,
  CFA_window_save = 0x2d,  // aarch64: the return address is signed from here on
  CFA_GNU_args_size = 0x2e,
  CFA_GNU_negative_offset_extended = 0x2f,
};

struct Cie {
  bool valid = false;
  std::uint64_t code_align = 1;
  std::int64_t data_align = 1;
  unsigned encoding = 0;  // DW_EH_PE_*: how its FDEs store addresses
  bool has_size = false;  // they have additional data that begin with their size
  Bytes instructions;
};

class Reader {
 public:
  explicit Reader(const FrameSection& section) : section_(section) {}

  std::optional<Cfa> find(std::uint64_t pc) {
    Cursor c(section_.bytes);
    while (c.good() && c.left() > 4) {
      const auto entry = header(c);
      if (!entry) return std::nullopt;
      if (entry->is_fde)
        if (auto found = in_fde(*entry, pc)) return found;
      c.seek(entry->end);
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    std::uint64_t body = 0, end = 0, cie = 0;
    bool is_fde = false;
  };

  std::optional<Entry> header(Cursor& c) const {
    std::uint64_t length = c.take<std::uint32_t>();
    const bool is_64 = length == 0xffffffff;
    if (is_64) length = c.take<std::uint64_t>();
    if (length == 0 && section_.is_eh_frame) return std::nullopt;
    const std::uint64_t id_at = c.at();
    const unsigned id_size = is_64 && !section_.is_eh_frame ? 8 : 4;
    if (!c.good() || length < id_size || length > c.left()) return std::nullopt;
    const std::uint64_t id = c.number(id_size);
    const std::uint64_t cie_id = section_.is_eh_frame ? 0 : (id_size == 8 ? ~0ull : 0xffffffff);
    return Entry{c.at(), id_at + length, section_.is_eh_frame ? id_at - id : id, id != cie_id};
  }

  const Cie& cie_at(std::uint64_t offset) {
    const auto [known, fresh] = cies_.try_emplace(offset);
    if (fresh) known->second = read_cie(offset);
    return known->second;
  }

  Cie read_cie(std::uint64_t offset) const {
    Cie cie;
    Cursor c(section_.bytes, offset);
    const auto entry = header(c);
    if (!entry || entry->is_fde) return cie;
    const unsigned version = c.take<std::uint8_t>();
    const std::string_view augmentation = c.string();
    if (version >= 4) c.skip(2);  // sizes of addresses and segments
    cie.code_align = c.uleb();
    cie.data_align = c.sleb();
    version == 1 ? c.skip(1) : void(c.uleb());  // the return address's register
    if (!augmentation.empty() && !augment(c, augmentation, cie)) return cie;
    if (!c.good() || c.at() > entry->end) return cie;
    cie.instructions = section_.bytes.subspan(c.at(), entry->end - c.at());
    cie.valid = true;
    return cie;
  }

  static bool augment(Cursor& c, std::string_view augmentation, Cie& cie) {
    std::uint64_t end = 0;
    for (const char ch : augmentation) {
      switch (ch) {
        case 'z':
          end = c.uleb();
          end += c.at();
          cie.has_size = true;
          break;
        case 'R': cie.encoding = c.take<std::uint8_t>(); break;
        case 'L': c.take<std::uint8_t>(); break;
        case 'P': {
          const unsigned how = c.take<std::uint8_t>();
          stored(c, how);
          break;
        }
        case 'S':
        case 'B':
        case 'G': break;
        default: return false;
      }
    }
    if (cie.has_size) c.seek(end);
    return c.good();
  }

  // In one of the DW_EH_PE formats, relative to nothing.
  static std::uint64_t stored(Cursor& c, unsigned format) {
    switch (format & 0x0f) {
      case 0x00:
      case 0x04:
      case 0x0c: return c.take<std::uint64_t>();
      case 0x01: return c.uleb();
      case 0x02: return c.take<std::uint16_t>();
      case 0x03: return c.take<std::uint32_t>();
      case 0x09: return static_cast<std::uint64_t>(c.sleb());
      case 0x0a: return static_cast<std::uint64_t>(std::int64_t{c.take<std::int16_t>()});
      case 0x0b: return static_cast<std::uint64_t>(std::int64_t{c.take<std::int32_t>()});
      default: c.fail(); return 0;
    }
  }
  std::uint64_t address(Cursor& c, unsigned encoding) const {
    const std::uint64_t here = section_.address + c.at();
    const std::uint64_t value = stored(c, encoding);
    return (encoding & 0x70) == 0x10 ? here + value : value;
  }

  std::optional<Cfa> in_fde(const Entry& entry, std::uint64_t pc) {
    const Cie& cie = cie_at(entry.cie);
    if (!cie.valid) return std::nullopt;
    Cursor c(section_.bytes.first(entry.end), entry.body);
    const std::uint64_t start = address(c, cie.encoding);
    const std::uint64_t size = stored(c, cie.encoding & 0x0f);
    if (!c.good() || pc < start || pc - start >= size) return std::nullopt;
    if (cie.has_size) c.skip(c.uleb());
    if (!c.good()) return std::nullopt;
    Machine machine{cie, *this, start, pc, {}, {}};
    if (!machine.run(Cursor(cie.instructions))) return std::nullopt;
    if (!machine.run(Cursor(c.block(c.left())))) return std::nullopt;
    return machine.cfa;
  }

  // Runs the rows of the table up to the one for pc; only the CFA's column is kept.
  struct Machine {
    const Cie& cie;
    const Reader& reader;
    std::uint64_t at, pc;
    Cfa cfa;
    std::vector<Cfa> remembered;

    bool run(Cursor c) {
      while (c.good() && c.left() > 0 && at <= pc)
        if (!step(c)) return false;
      return c.good();
    }
    // False: an instruction that isn't known.
    bool step(Cursor& c) {
      const auto byte = c.take<std::uint8_t>();
      const auto advance = [&](std::uint64_t by) { at += by * cie.code_align; };
      switch (byte & 0xc0) {
        case 0x40: return advance(byte & 0x3f), true;
        case 0x80: return c.uleb(), true;
        case 0xc0: return true;
        default: break;
      }
      const auto scaled = [&] { return static_cast<std::uint64_t>(c.sleb() * cie.data_align); };
      switch (byte) {
        case 0: return true;
        case CFA_set_loc: at = reader.address(c, cie.encoding); return true;
        case CFA_advance_loc1: return advance(c.take<std::uint8_t>()), true;
        case CFA_advance_loc2: return advance(c.take<std::uint16_t>()), true;
        case CFA_advance_loc4: return advance(c.take<std::uint32_t>()), true;
        case CFA_restore_extended:
        case CFA_undefined:
        case CFA_same_value:
        case CFA_GNU_args_size: return c.uleb(), true;
        case CFA_window_save: return true;
        case CFA_offset_extended:
        case CFA_register:
        case CFA_val_offset:
        case CFA_GNU_negative_offset_extended: return c.uleb(), c.uleb(), true;
        case CFA_offset_extended_sf:
        case CFA_val_offset_sf: return c.uleb(), c.sleb(), true;
        case CFA_expression:
        case CFA_val_expression: return c.uleb(), c.skip(c.uleb()), true;
        case CFA_remember_state:
          if (remembered.size() >= kMaxRemembered) return false;
          remembered.push_back(cfa);
          return true;
        case CFA_restore_state:
          if (remembered.empty()) return false;
          cfa = remembered.back();
          remembered.pop_back();
          return true;
        case CFA_def_cfa:
          cfa = {static_cast<unsigned>(c.uleb()), 0, {}};
          cfa.offset = c.uleb();
          return true;
        case CFA_def_cfa_sf:
          cfa = {static_cast<unsigned>(c.uleb()), 0, {}};
          cfa.offset = scaled();
          return true;
        case CFA_def_cfa_register: cfa.reg = static_cast<unsigned>(c.uleb()); return true;
        case CFA_def_cfa_offset: cfa.offset = c.uleb(); return true;
        case CFA_def_cfa_offset_sf: cfa.offset = scaled(); return true;
        case CFA_def_cfa_expression: cfa.expression = c.block(c.uleb()); return true;
        default: return false;
      }
    }
  };

  const FrameSection& section_;
  std::unordered_map<std::uint64_t, Cie> cies_;
};

}  // namespace

std::optional<Cfa> find_cfa(const FrameSection& section, std::uint64_t pc) { return Reader(section).find(pc); }

}  // namespace probed::dwarf
