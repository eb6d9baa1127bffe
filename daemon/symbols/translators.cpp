#include "daemon/symbols/translators.hpp"

#include <algorithm>
#include <iterator>

#include "daemon/symbols/elf.hpp"

namespace probed::symbols {
namespace {

using What = Translator::What;

std::string_view directory_of(std::string_view path) { return path.substr(0, path.rfind('/') + 1); }

// valgrind's tools are programs of their own, which load the traced one (coregrind/link_tool_exe_linux).
bool is_valgrind(std::string_view exe) {
  return directory_of(exe).find("valgrind") != exe.npos && exe.ends_with("-linux");
}

// qemu-user, by the processors it emulates: qemu-system-*, qemu-img and qemu-ga are ordinary programs.
bool is_qemu_user(std::string_view name) {
  static constexpr std::string_view kCpus[] = {
      "aarch64",   "aarch64_be",  "alpha",   "arm",     "armeb",    "hexagon", "hppa",    "i386", "loongarch64",
      "m68k",      "microblaze",  "mips",    "mips64",  "mips64el", "mipsel",  "mipsn32", "or1k", "microblazeel",
      "mipsn32el", "ppc",         "ppc64",   "ppc64le", "riscv32",  "riscv64", "s390x",   "sh4",  "sh4eb",
      "sparc",     "sparc32plus", "sparc64", "x86_64",  "xtensa",   "xtensaeb"};
  if (!name.starts_with("qemu-")) return false;
  name.remove_prefix(5);
  if (name.ends_with("-static")) name.remove_suffix(7);
  return std::ranges::find(kCpus, name) != std::end(kCpus);
}

bool is_emulator(std::string_view name) {
  return is_qemu_user(name) || name == "box64" || name == "box86" || name == "FEX" || name == "FEXInterpreter" ||
         name == "FEXLoader";
}

// The libraries by which the others are in their process.
struct Library {
  std::string_view prefix, name;
  What what;
};
constexpr Library kLibraries[] = {
    {"pinbin", "Pin", What::own_process},          {"libpindwarf.so", "Pin", What::own_process},
    {"libpin3dwarf.so", "Pin", What::own_process}, {"libdynamorio.so", "DynamoRIO", What::own_process},
    {"frida-agent", "Frida", What::some_threads},  {"frida-gadget", "Frida", What::some_threads},
};

}  // namespace

bool Translator::translates(const Mapping& mapping) const {
  if (what != What::own_process || mapping.inode == 0) return false;
  // The tools that Pin and DynamoRIO load beside themselves are as much their own.
  return name == "valgrind" ? mapping.path != file : directory_of(mapping.path) != directory_of(file);
}

std::string Translator::hint() const {
  if (what == What::own_process)
    return "run the program without " + name + " to probe it; what can be probed here is " + name + "'s own code, in " +
           file;
  return "probe the program where it runs without " + name + ", or " + name + "'s own functions here";
}

std::string Translator::note() const {
  switch (what) {
    case What::own_process: return name + " runs this program as a translation: this is " + name + "'s own code";
    case What::other_program:
      return name + " emulates another program, whose code can't be probed: this is " + name + "'s own code";
    case What::some_threads:
      return name + " is loaded: a thread that its Stalker follows runs a copy of the code, and hits nothing";
  }
  return {};
}

std::optional<Translator> translator_in(std::string_view exe, std::span<const Mapping> mappings) {
  if (exe.ends_with(" (deleted)")) exe.remove_suffix(10);
  const std::string_view name = base_name(exe);
  if (is_valgrind(exe)) return Translator{What::own_process, "valgrind", std::string(exe)};
  if (is_emulator(name)) return Translator{What::other_program, std::string(name), std::string(exe)};
  for (const Mapping& mapping : mappings) {
    if (!mapping.executable) continue;
    std::string_view file = base_name(mapping.path);
    if (file.starts_with("memfd:")) file.remove_prefix(6);
    const auto known = std::ranges::find_if(kLibraries, [&](const Library& l) { return file.starts_with(l.prefix); });
    if (known != std::end(kLibraries)) return Translator{known->what, std::string(known->name), mapping.path};
  }
  return std::nullopt;
}

}  // namespace probed::symbols
