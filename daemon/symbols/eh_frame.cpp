// See eh_frame.hpp.
#include "daemon/symbols/eh_frame.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>

namespace probed::symbols {
namespace {

constexpr std::uint64_t kMaxFrameBytes = 128u << 20;  // chromium's are 40 MB
constexpr std::size_t kMaxFrames = 4u << 20;

// DW_EH_PE_*: the low four bits say how a value is stored, the next three what it is relative to.
constexpr unsigned kOmit = 0xff, kFormatMask = 0x0f, kRelativeMask = 0x70, kIndirect = 0x80;
constexpr unsigned kAbsolute = 0x00, kPcRelative = 0x10, kDataRelative = 0x30;

// A run of bytes of the file together with the address of its first one. Reading past the end makes it bad for good.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::uint64_t address) : bytes_(bytes), address_(address) {}

  bool good() const { return good_; }
  std::uint64_t address() const { return address_ + at_; }
  std::size_t left() const { return bytes_.size() - at_; }
  void seek(std::uint64_t to) {
    good_ = good_ && to >= address_ && to - address_ <= bytes_.size();
    if (good_) at_ = static_cast<std::size_t>(to - address_);
  }
  void skip(std::uint64_t n) {
    good_ = good_ && n <= left();
    if (good_) at_ += n;
  }
  template <class T>
  T take() {
    T value{};
    good_ = good_ && left() >= sizeof(T);
    if (!good_) return value;
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::uint64_t uleb() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; good_ && shift < 64; shift += 7) {
      const auto byte = take<std::uint8_t>();
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (!(byte & 0x80)) return value;
    }
    good_ = false;
    return value;
  }
  // A value in one of the DW_EH_PE formats, sign-extended, relative to nothing.
  std::uint64_t stored(unsigned format) {
    switch (format & kFormatMask) {
      case 0x00: return take<std::uint64_t>();  // absptr
      case 0x01: return uleb();
      case 0x02: return take<std::uint16_t>();
      case 0x03: return take<std::uint32_t>();
      case 0x04: return take<std::uint64_t>();
      case 0x0a: return static_cast<std::uint64_t>(std::int64_t{take<std::int16_t>()});
      case 0x0b: return static_cast<std::uint64_t>(std::int64_t{take<std::int32_t>()});
      case 0x0c: return take<std::uint64_t>();
      default: good_ = false; return 0;
    }
  }
  // A pointer: `data` is what data-relative ones are relative to.
  std::uint64_t pointer(unsigned encoding, std::uint64_t data) {
    const std::uint64_t here = address();
    const std::uint64_t value = stored(encoding);
    switch (encoding & (kRelativeMask | kIndirect)) {
      case kAbsolute: return value;
      case kPcRelative: return here + value;
      case kDataRelative: return data + value;
      default: good_ = false; return 0;  // text-, function-relative, aligned, indirect: no linker writes them here
    }
  }

 private:
  std::span<const std::byte> bytes_;
  std::uint64_t address_;
  std::size_t at_ = 0;
  bool good_ = true;
};

// The header of a CIE or FDE: where its contents begin and end.
struct Entry {
  std::uint64_t id_at = 0;  // address of the CIE id / CIE pointer field
  std::uint64_t id = 0;
  std::uint64_t end = 0;
};

std::optional<Entry> read_entry(Cursor& c) {
  std::uint64_t length = c.take<std::uint32_t>();
  if (length == 0xffffffff) length = c.take<std::uint64_t>();
  Entry entry;
  entry.id_at = c.address();
  if (!c.good() || length < 4 || length > c.left()) return std::nullopt;  // length 0: the terminator
  entry.end = entry.id_at + length;
  entry.id = c.take<std::uint32_t>();  // 32 bits also in the 64-bit format, other than in .debug_frame
  return entry;
}

// Reads .eh_frame; keeps the pointer encoding of every CIE it has seen (a program has a handful).
class FrameReader {
 public:
  explicit FrameReader(Cursor bytes) : bytes_(bytes) {}

  struct Frame {
    FrameRange range;
    std::uint64_t tables = 0;  // address of its language-specific data; 0: none
  };

  // The FDE at this address; `next`, when given, gets the address after it, also for CIEs.
  std::optional<Frame> at(std::uint64_t address, std::uint64_t* next) {
    Cursor c = bytes_;
    c.seek(address);
    const auto entry = read_entry(c);
    if (next) *next = entry ? entry->end : 0;
    if (!entry || entry->id == 0) return std::nullopt;
    const auto encodings = cie_encodings(entry->id_at - entry->id);
    if (!encodings) return std::nullopt;
    Frame frame;
    FrameRange& range = frame.range;
    range.start.value = c.pointer(encodings->code, 0);
    range.size = c.stored(encodings->code & kFormatMask);
    if (!c.good() || range.size == 0 || range.start.value + range.size < range.start.value) return std::nullopt;
    frame.tables = tables_of(c, *encodings);
    return frame;
  }

 private:
  // How a CIE's FDEs store addresses of code and of language-specific data.
  struct Encodings {
    unsigned code = kAbsolute, tables = kOmit;
    bool has_size = false;  // their additional data begin with their size ('z')
  };

  // Null and damaged pointers alike mean none, as they do to the unwinder.
  static std::uint64_t tables_of(Cursor c, const Encodings& encodings) {
    if (encodings.tables == kOmit || !encodings.has_size) return 0;
    c.uleb();
    Cursor null = c;
    if (null.stored(encodings.tables) == 0) return 0;
    const std::uint64_t address = c.pointer(encodings.tables & ~kIndirect, 0);
    return c.good() ? address : 0;
  }

  std::optional<Encodings> cie_encodings(std::uint64_t address) {
    const auto [known, fresh] = encodings_.try_emplace(address);
    if (fresh) known->second = read_cie(address);
    return known->second;
  }

  std::optional<Encodings> read_cie(std::uint64_t address) const {
    Cursor c = bytes_;
    c.seek(address);
    const auto entry = read_entry(c);
    if (!entry || entry->id != 0) return std::nullopt;
    const auto version = c.take<std::uint8_t>();
    std::string augmentation;
    for (char ch; (ch = c.take<char>()) != '\0' && c.good() && augmentation.size() < 16;) augmentation.push_back(ch);
    c.uleb();  // code alignment
    c.uleb();  // data alignment; signed, but only its length matters
    version == 1 ? void(c.take<std::uint8_t>()) : void(c.uleb());  // return address register
    if (!c.good()) return std::nullopt;
    if (augmentation.empty()) return Encodings{};
    return augmented(c, augmentation);
  }

  static std::optional<Encodings> augmented(Cursor c, const std::string& augmentation) {
    Encodings encodings;
    for (const char ch : augmentation) {
      switch (ch) {
        case 'z':
          c.uleb();
          encodings.has_size = true;
          break;
        case 'R': encodings.code = c.take<std::uint8_t>(); break;
        case 'L': encodings.tables = c.take<std::uint8_t>(); break;
        case 'P': {
          const unsigned how = c.take<std::uint8_t>();
          c.stored(how);
          break;
        }
        case 'S':
        case 'B':
        case 'G': break;  // signal frame, pointer authentication, memory tagging: no data
        default: return std::nullopt;
      }
    }
    if (!c.good()) return std::nullopt;
    return encodings;
  }

  Cursor bytes_;
  std::unordered_map<std::uint64_t, std::optional<Encodings>> encodings_;
};

// What .eh_frame_hdr says.
struct Header {
  std::uint64_t frames = 0;          // address of .eh_frame
  std::vector<std::uint64_t> table;  // addresses of FDEs; empty: no table
};

std::optional<Header> read_header(Cursor c) {
  const std::uint64_t base = c.address();
  if (c.take<std::uint8_t>() != 1) return std::nullopt;
  const unsigned frames_encoding = c.take<std::uint8_t>(), count_encoding = c.take<std::uint8_t>();
  const unsigned table_encoding = c.take<std::uint8_t>();
  Header header;
  header.frames = c.pointer(frames_encoding, base);
  if (!c.good()) return std::nullopt;
  if (count_encoding == kOmit || table_encoding == kOmit) return header;
  const std::uint64_t count = std::min<std::uint64_t>(c.pointer(count_encoding, base), c.left() / 4);
  for (std::uint64_t i = 0; i < count && c.good() && i < kMaxFrames; ++i) {
    c.pointer(table_encoding, base);
    const std::uint64_t fde = c.pointer(table_encoding, base);
    if (c.good()) header.table.push_back(fde);
  }
  return header;
}

std::vector<FrameReader::Frame> from_table(FrameReader& reader, std::span<const std::uint64_t> table) {
  std::vector<FrameReader::Frame> frames;
  frames.reserve(table.size());
  for (const std::uint64_t fde : table)
    if (const auto frame = reader.at(fde, nullptr)) frames.push_back(*frame);
  return frames;
}

std::vector<FrameReader::Frame> from_walk(FrameReader& reader, std::uint64_t address) {
  std::vector<FrameReader::Frame> frames;
  while (frames.size() < kMaxFrames) {
    std::uint64_t next = 0;
    if (const auto frame = reader.at(address, &next)) frames.push_back(*frame);
    if (next <= address) break;
    address = next;
  }
  return frames;
}

void sort_unique(std::vector<FrameRange>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const FrameRange& a, const FrameRange& b) {
    return a.start != b.start ? a.start < b.start : a.size > b.size;
  });
  const auto same = [](const FrameRange& a, const FrameRange& b) { return a.start == b.start; };
  ranges.erase(std::unique(ranges.begin(), ranges.end(), same), ranges.end());
}

// The bytes of the file from this address to the end of its segment.
std::optional<std::vector<std::byte>> bytes_from(const elf::Image& image, std::uint64_t address, std::uint64_t most) {
  const auto offset = image.offset_of({address});
  const std::uint64_t size = std::min(image.bytes_at({address}), most);
  if (!offset || size == 0) return std::nullopt;
  return image.read_bytes(*offset, size, kMaxFrameBytes);
}

std::vector<FrameReader::Frame> read_frames(const elf::Image& image) {
  const auto segments = image.segments();
  const auto hdr = std::find_if(segments.begin(), segments.end(), [](auto& p) { return p.p_type == PT_GNU_EH_FRAME; });
  if (hdr == segments.end()) return {};
  const auto header_bytes = bytes_from(image, hdr->p_vaddr, std::min(hdr->p_filesz, kMaxFrameBytes));
  if (!header_bytes) return {};
  const auto header = read_header(Cursor(*header_bytes, hdr->p_vaddr));
  if (!header) return {};
  const auto frames = bytes_from(image, header->frames, kMaxFrameBytes);
  if (!frames) return {};
  FrameReader reader(Cursor(*frames, header->frames));
  return header->table.empty() ? from_walk(reader, header->frames) : from_table(reader, header->table);
}

// The call sites of one function, each with a landing pad or none. False: damaged.
bool add_landing_pads(Cursor c, std::uint64_t function, std::vector<ElfAddr>& out) {
  const unsigned base_encoding = c.take<std::uint8_t>();
  const std::uint64_t base = base_encoding == kOmit ? function : c.pointer(base_encoding, 0);
  if (c.take<std::uint8_t>() != kOmit) c.uleb();  // where the table of types is
  const unsigned encoding = c.take<std::uint8_t>();
  const std::uint64_t size = c.uleb();
  const std::uint64_t end = c.address() + size;
  if (!c.good() || size > c.left()) return false;
  while (c.good() && c.address() < end) {
    c.stored(encoding);  // where the calls are
    c.stored(encoding);
    const std::uint64_t pad = c.stored(encoding);
    c.uleb();  // what to do
    if (pad != 0 && c.good()) out.push_back({base + pad});
  }
  return c.good();
}

}  // namespace

std::vector<FrameRange> read_frame_ranges(const elf::Image& image) {
  std::vector<FrameRange> ranges;
  for (const FrameReader::Frame& frame : read_frames(image)) ranges.push_back(frame.range);
  sort_unique(ranges);
  return ranges;
}

bool is_covered(std::span<const FrameRange> ranges, ElfAddr address) {
  const auto after = std::ranges::upper_bound(ranges, address, {}, &FrameRange::start);
  return after != ranges.begin() && address.value - std::prev(after)->start.value < std::prev(after)->size;
}

LandingPads read_landing_pads(const elf::Image& image) {
  LandingPads out;
  std::vector<FrameReader::Frame> frames = read_frames(image);
  std::erase_if(frames, [](const FrameReader::Frame& frame) { return frame.tables == 0; });
  std::ranges::sort(frames, {}, &FrameReader::Frame::tables);
  // They are in one section, one behind the other: read once.
  std::optional<std::vector<std::byte>> bytes;
  std::uint64_t begin = 0;
  for (const FrameReader::Frame& frame : frames) {
    if (!bytes || frame.tables - begin >= bytes->size()) {
      begin = frame.tables;
      bytes = bytes_from(image, begin, kMaxFrameBytes);
    }
    if (!bytes) {
      out.complete = false;
      continue;
    }
    Cursor c(*bytes, begin);
    c.seek(frame.tables);
    if (!add_landing_pads(c, frame.range.start.value, out.addresses)) out.complete = false;
  }
  return out;
}

}  // namespace probed::symbols
