// One ELF file, parsed once and shared by every target that has it mapped: its segments, its symbols from wherever they
// are kept, its function bounds.
//
// Thread: any. The headers are read when it is made; the contents at the first need, by one thread while others that
// want the same module wait (nobody else does). Nothing changes after that. No descriptor is kept: a cached file must
// not keep a file system busy.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arch/region.hpp"
#include "daemon/base/timed_mutex.hpp"
#include "daemon/elf/image.hpp"
#include "daemon/elf/usdt.hpp"
#include "daemon/symbols/debug_file.hpp"
#include "daemon/symbols/dynamic.hpp"
#include "daemon/symbols/eh_frame.hpp"
#include "daemon/symbols/symbol_table.hpp"

namespace probed::dwarf {
class DebugInfo;  // info.hpp
}

namespace probed::symbols {

// One PT_LOAD.
struct Segment {
  ElfAddr address;
  std::uint64_t file_offset = 0, file_size = 0, memory_size = 0;
  bool executable = false;
};

// The function around an address, as far as it is known.
struct FunctionBounds {
  const Symbol* symbol = nullptr;  // null: only the unwind table knows it
  ElfAddr start;
  std::uint64_t size = 0;  // bytes; 0: not given
};

class Module {
 public:
  // `path`: as the target sees it, for names and messages.
  static std::shared_ptr<Module> from_headers(const elf::Image& image, std::string path);

  const std::string& path() const { return path_; }
  const std::string& soname() const { return soname_; }  // empty when it has none
  std::span<const std::byte> build_id() const { return build_id_; }
  std::span<const Segment> segments() const { return segments_; }
  // The address of the byte at a file offset; nullopt when no segment loads it. `executable`: only text will do.
  std::optional<ElfAddr> address_of(std::uint64_t file_offset, bool executable) const;
  bool executable_at(ElfAddr address) const;
  // Whether a segment loads the byte at this file offset to this address.
  bool loads(std::uint64_t file_offset, ElfAddr address) const;
  // nullopt: no byte of the file is there.
  std::optional<std::uint64_t> file_offset_of(ElfAddr address) const;
  // Section __rseq_cs (restartable.hpp) as loaded; size 0: none.
  ElfAddr restartable_start() const { return restartable_start_; }
  std::uint64_t restartable_size() const { return restartable_size_; }
  // Where the thread-local variables are from the thread pointer on, if it is the main program; nullopt: it has none.
  std::optional<std::uint64_t> main_thread_block() const { return main_thread_block_; }
  // Whether a symbol or an unwind table entry begins here, and not just covers it.
  bool function_begins_at(ElfAddr address) const;

  // What load() needs from whoever knows a target that has the module mapped.
  struct Source {
    std::function<std::optional<elf::Image>()> open;  // nullopt: not possible any more
    OpenPath open_path;                               // a path as that target sees it
    std::vector<std::string> debug_roots;
    FetchById fetch;  // null: no servers
  };
  // Reads symbols and bounds unless done before. False: the file couldn't be opened; a later call may try again.
  bool load(const Source& source) const;
  bool is_loaded() const { return loaded_.load(std::memory_order_acquire); }  // whether it has returned true

  // These are empty until load() has returned true.
  const SymbolTable& symbols() const { return contents_->symbols; }
  std::span<const LoaderSlot> loader_slots() const { return contents_->slots; }
  std::span<const ThreadSlot> thread_slots() const { return contents_->thread_slots; }
  // Where the loader writes which variable is meant by one of the module's; nullopt: always its own.
  std::optional<ElfAddr> slot_of_variable(ElfAddr variable) const;
  std::span<const FrameRange> frames() const { return contents_->frames; }
  std::span<const elf::UsdtNote> usdt_notes() const { return contents_->usdt; }
  // Where its code may be entered, for jumps in place of breakpoints; made at the first need, which takes milliseconds
  // for each MiB. Null: the file can't be read. Precondition: load() has returned true.
  std::shared_ptr<const arch::CodeFlow> code_flow(const Source& source) const;
  // What it or its debug file says of lines and variables; read at the first need. Null: neither says anything.
  std::shared_ptr<const dwarf::DebugInfo> debug_info(const Source& source) const;
  // Where debug_info() has found none: what is wrong with a file that lies where it ought to be; "": none lies there.
  std::string unfit_debug_file() const;
  // Built by the Go tool chain.
  bool is_go() const { return go_; }
  // nullopt: neither a symbol nor the unwind table covers the address.
  std::optional<FunctionBounds> function_at(ElfAddr address) const;

  std::size_t memory_bytes() const;

 private:
  struct Contents {
    SymbolTable symbols;
    std::vector<FrameRange> frames;
    std::vector<LoaderSlot> slots;
    std::vector<ThreadSlot> thread_slots;
    std::vector<DataSlot> data_slots;
    std::vector<elf::UsdtNote> usdt;
  };
  Module() : contents_(std::make_unique<Contents>()) {}
  void load_symbols(const elf::Image& image, const Source& source, Contents& contents) const;
  const FrameRange* frame_at(ElfAddr address) const;

  std::string path_, soname_;
  std::vector<std::byte> build_id_;
  std::vector<Segment> segments_;
  ElfAddr restartable_start_{};
  std::uint64_t restartable_size_ = 0;  // bytes
  std::optional<std::uint64_t> main_thread_block_;
  bool go_ = false;
  mutable TimedMutex flow_mutex_;
  mutable std::shared_ptr<const arch::CodeFlow> flow_;
  mutable TimedMutex debug_mutex_;
  mutable std::shared_ptr<const dwarf::DebugInfo> debug_;
  mutable std::string unfit_debug_file_;
  mutable std::chrono::steady_clock::time_point asked_again_{};  // when it is worth looking for what wasn't there
  mutable TimedMutex load_mutex_;
  mutable std::atomic<bool> loaded_ = false;
  mutable std::unique_ptr<Contents> contents_;  // written under load_mutex_, read once loaded_ is seen true
};

// The last component of a path.
std::string_view base_name(std::string_view path);

}  // namespace probed::symbols
