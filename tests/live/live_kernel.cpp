// The kernel's uprobes and ours side by side: the same definitions, to the letter, in the kernel's uprobe_events and in
// probed, on two runs of one program with the same addresses (setarch -R). Every event's arguments must be the same
// text, in both tiers.
//
// Not compared is what we mean to do otherwise: of unreadable memory the kernel gives whatever its buffer held, where
// we say (fault); \"text" is a (fault) in its user probes; it writes unprintable bytes to the terminal as they are; and
// it calls an unnamed $retval argN.
#include <doctest/doctest.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>

#include "tests/live/probing.hpp"

namespace probed::live {
namespace {

constexpr const char* kProgram = "values";

std::string group() { return "probed_test_" + std::to_string(::getpid()); }

// ---- the program's file ---------------------------------------------------------------------------------------------

// Of a symbol: its address in the file's headers, and where the file holds it.
class ElfSymbols {
 public:
  explicit ElfSymbols(const std::string& path) : bytes_(read_file(path)) {
    const auto header = at<Elf64_Ehdr>(0);
    for (unsigned i = 0; i < header.e_phnum; ++i)
      segments_.push_back(at<Elf64_Phdr>(header.e_phoff + i * sizeof(Elf64_Phdr)));
    for (unsigned i = 0; i < header.e_shnum; ++i) {
      const auto table = section(header, i);
      if (table.sh_type != SHT_SYMTAB) continue;
      const auto names = section(header, table.sh_link);
      for (std::uint64_t j = 0; j < table.sh_size; j += sizeof(Elf64_Sym)) {
        const auto symbol = at<Elf64_Sym>(table.sh_offset + j);
        addresses_[bytes_.c_str() + names.sh_offset + symbol.st_name] = symbol.st_value;
      }
    }
  }
  std::uint64_t address(const std::string& name) const { return addresses_.at(name); }
  std::uint64_t offset(const std::string& name) const {
    const std::uint64_t address = addresses_.at(name);
    for (const Elf64_Phdr& s : segments_)
      if (s.p_type == PT_LOAD && address >= s.p_vaddr && address - s.p_vaddr < s.p_filesz)
        return address - s.p_vaddr + s.p_offset;
    FAIL("no segment holds " << name);
    return 0;
  }

 private:
  template <class T>
  T at(std::uint64_t offset) const {
    T value;
    REQUIRE(offset + sizeof value <= bytes_.size());
    std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }
  Elf64_Shdr section(const Elf64_Ehdr& header, unsigned i) const {
    return at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr));
  }

  std::string bytes_;
  std::vector<Elf64_Phdr> segments_;
  std::map<std::string, std::uint64_t> addresses_;
};

// ---- the kernel -----------------------------------------------------------------------------------------------------

// tracefs, with an instance of the tracer that nobody else uses. What it has defined is removed by the destructor.
class Kernel {
 public:
  Kernel() {
    if (::geteuid() != 0) {
      why_ = "uprobe_events needs root";
      return;
    }
    for (const char* place : {"/sys/kernel/tracing", "/sys/kernel/debug/tracing"})
      if (root_.empty() && ::access((std::string(place) + "/uprobe_events").c_str(), W_OK) == 0) root_ = place;
    if (root_.empty()) mount();
    if (!root_.empty() && ::mkdir(instance().c_str(), 0700) != 0) {
      why_ = std::string("tracefs makes no instance: ") + std::strerror(errno);
      root_.clear();
    }
  }
  ~Kernel() {
    if (!root_.empty()) {
      write(instance() + "/events/enable", "0");
      for (const std::string& name : names_) write(root_ + "/uprobe_events", "-:" + group() + "/" + name);
      ::rmdir(instance().c_str());
    }
    if (mounted_) ::umount2(directory_.path().c_str(), MNT_DETACH);
  }

  const std::string& why_not() const { return why_; }
  // False: refused.
  bool define(const std::string& name, const std::string& definition) {
    if (!write(root_ + "/uprobe_events", definition)) return false;
    names_.push_back(name);
    return true;
  }
  bool set(const std::string& name, const std::string& file, const std::string& text) {
    return write(instance() + "/events/" + group() + "/" + name + "/" + file, text);
  }
  std::string trace() const { return read_file(instance() + "/trace"); }
  // Type char is younger than the others: whether its own documentation has it.
  bool knows_characters() const { return read_file(root_ + "/README").find(" char,") != std::string::npos; }

 private:
  std::string instance() const { return root_ + "/instances/" + group(); }

  void mount() {
    if (::mount("none", directory_.path().c_str(), "tracefs", 0, nullptr) != 0) {
      why_ = std::string("tracefs can't be mounted here: ") + std::strerror(errno);
      return;
    }
    mounted_ = true;
    if (::access((directory_ / "uprobe_events").c_str(), W_OK) == 0)
      root_ = directory_.path();
    else
      why_ = "this kernel has no uprobe events";
  }

  // One write(): each is one command. uprobe_events opened for truncation would remove everybody's events.
  static bool write(const std::string& path, const std::string& text) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  TempDir directory_;
  std::string root_, why_;
  bool mounted_ = false;
  std::vector<std::string> names_;
};

// ---- both -----------------------------------------------------------------------------------------------------------

// What one event is asked for.
struct Asked {
  const char* function;
  std::string args;
  bool returns = false;
};

// "NAME: (PLACE) ARGS" of each line that has it, whoever wrote it: in order for each name.
std::map<std::string, std::vector<std::string>> events_in(const std::string& text) {
  std::map<std::string, std::vector<std::string>> found;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const std::size_t place = line.find(": (");
    const std::size_t close = line.find(')', place);
    if (line.starts_with("#") || place == line.npos || close == line.npos) continue;
    const std::size_t name = line.rfind(' ', place) + 1;
    found[line.substr(name, place - name)].push_back(line.substr(close + 1));
  }
  return found;
}

std::string name_of(std::size_t i) { return "e" + std::to_string(i); }

std::string definition_of(const Asked& asked, std::size_t i, const ElfSymbols& elf) {
  return (asked.returns ? "r:" : "p:") + group() + "/" + name_of(i) + " " + target_path(kProgram) + ":" +
         hex(elf.offset(asked.function)) + " " + asked.args;
}

// Whoever is executed meanwhile is at the addresses that its file gives it.
class FixedAddresses {
 public:
  FixedAddresses() { ::personality(static_cast<unsigned long>(before_) | ADDR_NO_RANDOMIZE); }
  ~FixedAddresses() { ::personality(static_cast<unsigned long>(before_)); }
  FixedAddresses(const FixedAddresses&) = delete;
  FixedAddresses& operator=(const FixedAddresses&) = delete;

 private:
  int before_ = ::personality(0xffffffff);
};

// The program at the addresses it always has that way; waits for "go".
struct FixedTarget : Process {
  explicit FixedTarget(const FixedAddresses& = {}) : Process({target_path(kProgram)}) {
    REQUIRE(next_line().value_or("").starts_with("ready "));
  }
  void run_to_the_end() {
    REQUIRE(send("go\n"));
    CHECK(wait() == Exit{0, 0});
  }
  // Where its file is mapped.
  std::uint64_t base() const { return std::stoull(read_file("/proc/" + std::to_string(pid()) + "/maps"), nullptr, 16); }
};

using EventTexts = std::map<std::string, std::vector<std::string>>;

// The filter is that of all of them.
EventTexts of_probed(const std::vector<Asked>& all, const ElfSymbols& elf, const std::string& filter, bool optimize) {
  Daemon daemon;
  TempDir dir;
  FixedTarget target;
  std::vector<std::string> arguments{"trace", "-p", std::to_string(target.pid()), "-o", dir / "events"};
  for (std::size_t i = 0; i < all.size(); ++i) {
    arguments.emplace_back("-e");
    arguments.push_back(definition_of(all[i], i, elf));
  }
  if (!filter.empty()) arguments.insert(arguments.end(), {"--filter", filter});
  if (!optimize) arguments.emplace_back("--no-optimize");
  Process trace(probectl_argv(daemon, arguments));
  const std::string armed = trace.next_error_line().value_or("nothing");
  REQUIRE_MESSAGE(armed.starts_with("armed "), armed);
  RpcClient client(daemon.socket());
  const auto are_jumps = [&] {
    return std::ranges::all_of(list_probes(client), [](const Json& p) { return p.at("tier") == "optimized"; });
  };
  if (optimize && !all.front().returns) CHECK(eventually(are_jumps));
  target.run_to_the_end();
  CHECK(trace.wait() == Exit{0, 0});
  return events_in(read_file(dir / "events"));
}

// nullopt: it refuses one of them.
std::optional<EventTexts> of_kernel(Kernel& kernel, const std::vector<Asked>& all, const ElfSymbols& elf,
                                    const std::string& filter) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string definition = definition_of(all[i], i, elf);
    CAPTURE(definition);
    const bool accepted = kernel.define(name_of(i), definition);
    CHECK(accepted);
    if (!accepted) return std::nullopt;
    if (!filter.empty()) CHECK(kernel.set(name_of(i), "filter", filter));
    CHECK(kernel.set(name_of(i), "enable", "1"));
  }
  FixedTarget().run_to_the_end();
  // Its breakpoints are in every run of the program while they are enabled, and ours refuse to share a place.
  for (std::size_t i = 0; i < all.size(); ++i) CHECK(kernel.set(name_of(i), "enable", "0"));
  return events_in(kernel.trace());
}

std::string joined_args(std::initializer_list<const char*> expressions) {
  std::string all;
  for (const char* e : expressions) all.append(all.empty() ? "" : " ").append(e);
  return all;
}

// Each of `types` of each of `expressions`.
std::string product(std::initializer_list<const char*> expressions, std::initializer_list<const char*> types) {
  std::string all;
  for (const char* e : expressions)
    for (const char* t : types) all.append(all.empty() ? "" : " ").append(e).append(":").append(t);
  return all;
}

std::string without_characters(const std::string& args) {
  std::istringstream words(args);
  std::string out;
  for (std::string word; words >> word;)
    if (word.find(":char") == word.npos) out += (out.empty() ? "" : " ") + word;
  return out;
}

void check_same(std::vector<Asked> all, const std::string& filter = {}) {
  const ElfSymbols elf(target_path(kProgram));
  Kernel kernel;
  if (!kernel.why_not().empty()) SKIP_TEST(kernel.why_not());
  for (Asked& asked : all) {
    if (kernel.knows_characters() || asked.args.find(":char") == asked.args.npos) continue;
    report_skip(__FILE__, "this kernel has no type char, so nothing to compare ours with");
    asked.args = without_characters(asked.args);
  }
  const auto truth = of_kernel(kernel, all, elf, filter);
  REQUIRE(truth);
  for (const bool optimize : {false, true}) {
    CAPTURE(optimize);
    EventTexts ours = of_probed(all, elf, filter, optimize);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CAPTURE(definition_of(all[i], i, elf));
      const auto theirs = truth->find(name_of(i));
      REQUIRE(theirs != truth->end());
      const std::vector<std::string>& mine = ours[name_of(i)];
      CHECK(mine.size() == theirs->second.size());
      for (std::size_t n = 0; n < std::min(mine.size(), theirs->second.size()); ++n)
        CHECK(mine[n] == theirs->second[n]);
    }
  }
}

TEST_CASE("registers have the kernel's values, of every type") {
  check_same({
      {"v_signed", joined_args({"a=" ARG1 ":s8", "b=" ARG2 ":s16", "c=" ARG3 ":s32", "d=" ARG4 ":s64", ARG1, ARG4})},
      {"v_signed",
       product({ARG1, ARG4}, {"u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "x8", "x16", "x32", "x64"})},
      {"v_unsigned", product({ARG1, ARG2, ARG3, ARG4}, {"u8", "s8", "x16", "u32", "s64", "x64"})},
      {"v_unsigned",
       product({ARG4}, {"b1@0/8", "b7@1/8", "b3@2/8", "b9@3/16", "b31@1/32", "b64@0/64", "b33@20/64", "b8@0/8"})},
      {"v_ten", joined_args({ENTRY_VALUES, "$comm", "\\1", "\\-1", "\\0x10:u8", "\\-1:s32", "name=\\77:s16"})},
  });
}

TEST_CASE("memory has the kernel's values: dereferences, arrays, bitfields, characters, strings") {
  const ElfSymbols elf(target_path(kProgram));
  // @+OFFS counts from where the probed code's segment would begin the file.
  const std::uint64_t slope = elf.address("v_array") - elf.offset("v_array");
  const auto at = [&](const char* global) { return "@+" + hex(elf.address(global) - slope); };
  const FixedTarget here;
  const auto address = [&](const char* global) { return "@" + hex(here.base() + elf.address(global)); };
  check_same({
      {"v_chain", joined_args({"+0(" ARG1 "):s32", "+0(+8(" ARG1 ")):s32", "+0(+16(+8(+8(" ARG1 ")))):string",
                               "+24(" ARG1 "):s16", "+28(" ARG1 "):b3@0/32", "+28(" ARG1 "):b5@3/32",
                               "+28(" ARG1 "):b24@8/32", "+0(+16(" ARG1 ")):ustring", "+16(" ARG1 "):string[1]",
                               "+0(+16(" ARG1 ")):u8[5]", "+0(+16(" ARG1 ")):char[5]", "+0(+16(" ARG1 ")):char",
                               "+u0(+u16(" ARG1 ")):string", "+u24(" ARG1 "):s16", "-0x10(+0(%sp)):x8", "-8(%sp):x8"})},
      {"v_array",
       product({"+0(" ARG1 ")"}, {"s32[4]", "u32[4]", "x32[4]", "u8[16]", "s8[16]", "x8[16]", "s16[8]", "x16[8]",
                                  "u64[2]", "s64[2]", "x64[2]", "b4@2/32[4]", "b5@1/8[16]", "x8[1]"})},
      {"v_array",
       joined_args({at("g_u32").c_str(), (at("g_u32") + ":u32").c_str(), (at("g_s64") + ":s64").c_str(),
                    (at("g_s8") + ":s8").c_str(), (at("g_text") + ":string").c_str(),
                    ("+0(" + at("g_text_pointer") + "):string").c_str(), (at("g_array") + ":s16[4]").c_str()})},
      {"v_array",
       joined_args({address("g_u32").c_str(), (address("g_s64") + ":s64").c_str(),
                    (address("g_text") + ":string").c_str(), (address("g_text_pointer") + ":string[1]").c_str(),
                    ("+0(" + address("g_text_pointer") + "):string").c_str(),
                    ("\\" + address("g_text").substr(1) + ":string").c_str()})},
  });
}

TEST_CASE("return probes have the kernel's values") {
  check_same({
      {"v_return", "a=$retval b=$retval:s64 c=$retval:x8 " RESULT " %sp $comm", true},
      {"v_return_text", "+0($retval):string +0($retval):char[3] r=$retval", true},
      {"v_ten", "r=$retval:s32", true},
  });
}

TEST_CASE("strings have the kernel's bytes, and filters the kernel's verdicts") {
  const std::string printable = "n != 1 && n != 3 && n != 4 && n != 7 && n != 8";  // one line, readable, UTF-8
  check_same({{"v_string", "n=" ARG2 ":s64 s=+0(" ARG1 "):string u=+0(" ARG1 "):ustring c=+0(" ARG1 "):char"}},
             printable);
  check_same({{"v_string", "n=" ARG2 ":s64 s=+0(" ARG1 "):string"}}, "s ~ \"*e*\" && n < 7 && n != 4 && n != 3");
  check_same({{"v_string", "n=" ARG2 ":s64 s=+0(" ARG1 "):string"}}, "s == \"hello\" || (n & 4 && n <= 6 && n != 4)");
  check_same({{"v_signed", "a=" ARG1 ":s8 b=" ARG2 ":u16 c=" ARG3 ":s32 d=" ARG4 ":x64"}}, "a < 0 && b > 0x7fff");
  check_same({{"v_signed", "a=" ARG1 ":s8 b=" ARG2 ":u16 c=" ARG3 ":s32 d=" ARG4 ":u64"}}, "c >= -3 && d > 3");
}

TEST_CASE("128 arguments have the kernel's values") {
  std::string many = "a=" ARG1 ":s8";
  for (int i = 1; i < 128; ++i) many += i % 3 == 0 ? " " ARG4 : i % 3 == 1 ? " " ARG3 ":s32" : " $stack0:x16";
  check_same({{"v_signed", many}});
}

}  // namespace
}  // namespace probed::live
