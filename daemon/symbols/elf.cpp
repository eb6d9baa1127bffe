// See elf.hpp.
#include "daemon/symbols/elf.hpp"

#include <unistd.h>

#include <algorithm>

#include "arch/arch.hpp"
#include "daemon/base/memory_share.hpp"
#include "daemon/base/time_limit.hpp"
#include "daemon/dwarf/info.hpp"
#include "daemon/symbols/code_flow.hpp"

namespace probed::symbols {
namespace {

constexpr std::uint64_t kMaxThreadBlock = 1ull << 32;
constexpr auto kAskAgain = std::chrono::seconds(3);  // for debug files, which may be installed meanwhile

std::vector<Segment> loaded_segments(const elf::Image& image) {
  std::vector<Segment> segments;
  for (const Elf64_Phdr& p : image.segments()) {
    std::uint64_t end = 0;
    if (p.p_type != PT_LOAD || __builtin_add_overflow(p.p_vaddr, p.p_memsz, &end)) continue;
    if (__builtin_add_overflow(p.p_offset, p.p_filesz, &end)) continue;
    segments.push_back({{p.p_vaddr}, p.p_offset, p.p_filesz, p.p_memsz, (p.p_flags & PF_X) != 0});
  }
  return segments;
}

std::vector<AddressRange> ranges(std::span<const Segment> segments, bool executable) {
  std::vector<AddressRange> found;
  for (const Segment& s : segments)
    if (s.executable == executable) found.push_back({s.address.value, s.address.value + s.memory_size});
  return found;
}

// The address that a segment loads a file offset to. The kernel maps whole pages, so a segment brings along what the
// file has before its first byte and behind its last one in the same page.
std::optional<ElfAddr> place_in(const Segment& s, std::uint64_t file_offset) {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t slack = s.file_offset % page, first = s.file_offset - slack;
  if (file_offset < first || file_offset - first >= s.file_size + slack) return std::nullopt;
  return ElfAddr{s.address.value - slack + (file_offset - first)};
}

std::optional<RawSymbols> static_symbols(const elf::Image& image) {
  const auto sections = image.sections();
  for (const Elf64_Shdr& s : sections) {
    if (s.sh_type != SHT_SYMTAB || s.sh_link >= sections.size()) continue;
    const Elf64_Shdr& strings = sections[s.sh_link];
    if (strings.sh_type != SHT_STRTAB) continue;
    return RawSymbols{s.sh_offset, s.sh_size / sizeof(Elf64_Sym), strings.sh_offset, strings.sh_size};
  }
  return std::nullopt;
}

}  // namespace

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Somebody else reads the same file, and may never come to its end.
constexpr std::chrono::seconds kOthersPatience{60};

std::shared_ptr<Module> Module::from_headers(const elf::Image& image, std::string path) {
  std::shared_ptr<Module> module(new Module);
  module->path_ = std::move(path);
  module->segments_ = loaded_segments(image);
  module->build_id_ = image.build_id();
  module->soname_ = read_dynamic(image).soname;
  if (const Elf64_Shdr* section = image.section("__rseq_cs")) {
    module->restartable_start_ = {section->sh_addr};
    module->restartable_size_ = section->sh_size;
  }
  for (const Elf64_Phdr& p : image.segments())
    if (p.p_type == PT_TLS && p.p_memsz < kMaxThreadBlock && p.p_align < kMaxThreadBlock)
      module->main_thread_block_ = arch::native::main_thread_block(p.p_memsz, std::max<std::uint64_t>(1, p.p_align));
  module->go_ = image.section(".note.go.buildid") != nullptr || image.section(".go.buildinfo") != nullptr;
  return module;
}

// Whether nothing was left out for want of time or memory.
static bool read_whole() { return !TimeLimit::passed() && !MemoryShare::refused(); }

std::shared_ptr<const arch::CodeFlow> Module::code_flow(const Source& source) const {
  const std::unique_lock lock(flow_mutex_, kOthersPatience);
  if (!lock) return nullptr;
  if (flow_) return flow_;
  const std::optional<elf::Image> image = source.open();
  auto flow = image ? read_code_flow(*this, *image) : nullptr;
  if (read_whole()) flow_ = std::move(flow);
  return flow_;
}

// Of a file that lies where a debug file would, and isn't used; "": none lies there.
static std::string unfitness(const std::string& path, const Opened& file) {
  if (file) return path + " is damaged, or of another build";
  const std::string why = file.objection();
  return why.empty() ? why : path + " isn't used: " + why;
}

std::shared_ptr<const dwarf::DebugInfo> Module::debug_info(const Source& source) const {
  const std::unique_lock lock(debug_mutex_, kOthersPatience);
  if (!lock) return nullptr;
  const auto now = std::chrono::steady_clock::now();
  // Parts of it found no room in somebody's share of memory: the next one may have more.
  if (debug_ && debug_->was_refused_memory()) debug_.reset(), asked_again_ = {};
  if ((debug_ && debug_->is_whole()) || now < asked_again_) return debug_;
  const std::optional<elf::Image> image = source.open();
  if (!image) return debug_;
  asked_again_ = now + kAskAgain;
  const auto open_split = [&](const std::string& path, std::string& unfit) -> std::optional<elf::Image> {
    if (!path.starts_with('/')) return std::nullopt;
    Opened file = source.open_path(path);
    if (std::string why = unfitness(path, file); !why.empty()) unfit = std::move(why);
    if (!file) return std::nullopt;
    Result<elf::Image> split = elf::Image::debug_from_fd(std::move(file.fd), path);
    return split ? std::optional(std::move(split).value()) : std::nullopt;
  };
  const auto read = [&](const elf::Image& from) {
    // A link relative to the debug file is relative to where it lies by its build-id.
    const std::string id = elf::to_hex(build_id_);
    const std::string root = source.debug_roots.empty() ? std::string() : source.debug_roots.front();
    const std::string path = id.size() > 2 ? root + "/.build-id/" + id.substr(0, 2) + "/" + id.substr(2) : path_;
    const auto alternate =
        find_supplementary_file(from, &from == &*image ? path_ : path, source.debug_roots, source.open_path);
    const auto link = read_supplementary_link(from);
    return dwarf::DebugInfo::read(*image, &from, alternate ? &*alternate : nullptr,
                                  {path_, open_split, link ? link->path : std::string()});
  };
  auto found = read(*image);
  unfit_debug_file_.clear();
  const auto open_debug = [&](const std::string& path) {
    Opened file = source.open_path(path);
    if (std::string why = unfitness(path, file); !why.empty()) unfit_debug_file_ = std::move(why);
    return file;
  };
  if (!found)
    if (const auto separate = find_debug_file(*image, path_, source.debug_roots, open_debug)) found = read(*separate);
  if (!found)
    if (const auto fetched = fetch_debug_file(build_id_, source.fetch)) found = read(*fetched);
  if (found && read_whole()) debug_ = std::move(found);
  if (MemoryShare::refused()) return asked_again_ = {}, debug_;  // whoever asks next may have room for it
  // What takes long to read, and isn't whole, is seldom read.
  const auto end = std::chrono::steady_clock::now();
  asked_again_ = end + std::max<std::chrono::steady_clock::duration>(kAskAgain, 20 * (end - now));
  return debug_;
}

std::string Module::unfit_debug_file() const {
  const std::lock_guard lock(debug_mutex_);
  return debug_ ? std::string() : unfit_debug_file_;
}

std::optional<ElfAddr> Module::address_of(std::uint64_t file_offset, bool executable) const {
  for (const Segment& s : segments_) {
    const auto address = place_in(s, file_offset);
    if (address && s.executable >= executable) return address;
  }
  return std::nullopt;
}

bool Module::loads(std::uint64_t file_offset, ElfAddr address) const {
  return std::any_of(segments_.begin(), segments_.end(),
                     [&](const Segment& s) { return place_in(s, file_offset) == address; });
}

std::optional<std::uint64_t> Module::file_offset_of(ElfAddr address) const {
  for (const Segment& s : segments_)
    if (address >= s.address && address.value - s.address.value < s.file_size)
      return s.file_offset + (address.value - s.address.value);
  return std::nullopt;
}

bool Module::function_begins_at(ElfAddr address) const {
  const auto bounds = function_at(address);
  const FrameRange* frame = frame_at(address);
  return (bounds && bounds->start == address) || (frame && frame->start == address);
}

bool Module::executable_at(ElfAddr address) const {
  return std::any_of(segments_.begin(), segments_.end(), [&](const Segment& s) {
    return s.executable && address >= s.address && address.value - s.address.value < s.memory_size;
  });
}

bool Module::load(const Source& source) const {
  if (loaded_.load(std::memory_order_acquire)) return true;
  const std::unique_lock lock(load_mutex_, kOthersPatience);
  if (!lock) return false;
  if (loaded_.load(std::memory_order_relaxed)) return true;
  const std::optional<elf::Image> image = source.open();
  if (!image) return false;
  load_symbols(*image, source, *contents_);
  contents_->frames = read_frame_ranges(*image);
  std::erase_if(contents_->frames, [&](const FrameRange& f) { return !executable_at(f.start); });
  contents_->slots = read_loader_slots(*image);
  contents_->thread_slots = read_thread_slots(*image);
  contents_->data_slots = read_data_slots(*image);
  contents_->usdt = elf::read_usdt_notes(*image);
  // Half of it is nothing: whoever comes next begins anew.
  if (!read_whole()) {
    contents_ = std::make_unique<Contents>();
    return false;
  }
  loaded_.store(true, std::memory_order_release);
  return true;
}

void Module::load_symbols(const elf::Image& image, const Source& source, Contents& contents) const {
  const auto code = ranges(segments_, true), data = ranges(segments_, false);
  SymbolTable& table = contents.symbols;
  const auto add_static = [&](const elf::Image& from) {
    const auto raw = static_symbols(from);
    if (raw) table.add(from, *raw, nullptr, code, data);
    return raw.has_value();
  };
  const DynamicInfo dynamic = read_dynamic(image);
  if (dynamic.symbols) table.add(image, *dynamic.symbols, &dynamic.versions, code, data);
  if (!add_static(image)) {
    const auto separate = find_debug_file(image, path_, source.debug_roots, source.open_path);
    if (!separate || !add_static(*separate)) {
      const auto fetched = fetch_debug_file(build_id_, source.fetch);
      if (!fetched || !add_static(*fetched))
        if (const auto mini = read_mini_debug_info(image)) add_static(*mini);
    }
  }
  table.seal();
}

const FrameRange* Module::frame_at(ElfAddr address) const {
  const auto frames = std::span(contents_->frames);
  const auto after = std::upper_bound(frames.begin(), frames.end(), address,
                                      [](ElfAddr a, const FrameRange& f) { return a < f.start; });
  if (after == frames.begin()) return nullptr;
  const FrameRange& frame = *std::prev(after);
  return address.value - frame.start.value < frame.size ? &frame : nullptr;
}

std::optional<FunctionBounds> Module::function_at(ElfAddr address) const {
  const SymbolTable& symbols = contents_->symbols;
  if (const Symbol* s = symbols.covering(address, true)) return FunctionBounds{s, s->address, s->size};
  if (!executable_at(address)) return std::nullopt;
  const Symbol* label = symbols.unsized_before(address);
  const FrameRange* frame = frame_at(address);
  if (!frame) return label ? std::optional(FunctionBounds{label, label->address, 0}) : std::nullopt;
  // A label before the frame belongs to other code: what is here has no name.
  if (!label || label->address < frame->start) return FunctionBounds{nullptr, frame->start, frame->size};
  return FunctionBounds{label, label->address, frame->size - (label->address.value - frame->start.value)};
}

std::optional<ElfAddr> Module::slot_of_variable(ElfAddr variable) const {
  const auto& slots = contents_->data_slots;
  const auto found =
      std::ranges::lower_bound(slots, variable.value, {}, [](const DataSlot& s) { return s.variable.value; });
  if (found == slots.end() || found->variable.value != variable.value) return std::nullopt;
  return found->where;
}

std::size_t Module::memory_bytes() const {
  if (!loaded_.load(std::memory_order_acquire)) return sizeof(Module);
  const Contents& c = *contents_;
  const std::unique_lock lock(debug_mutex_, std::try_to_lock);
  const std::size_t debug = lock && debug_ ? debug_->memory_bytes() : 0;
  return debug + sizeof(Module) + c.symbols.memory_bytes() + c.frames.capacity() * sizeof(FrameRange) +
         c.slots.capacity() * sizeof(LoaderSlot) + c.data_slots.capacity() * sizeof(DataSlot) +
         c.usdt.capacity() * (sizeof(elf::UsdtNote) + 64);
}

}  // namespace probed::symbols
