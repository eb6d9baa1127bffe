// Processes of every kind: what is refused, and what other programs' names lead to.
#include <elf.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <thread>

#include "daemon/base/process.hpp"
#include "daemon/symbols/target_files.hpp"
#include "support.hpp"

namespace probed::symbols::test {
namespace {

Error load_error(pid_t pid) {
  ModuleCache cache;
  const auto result = TargetSymbols::load(pid, cache);
  REQUIRE_FALSE(result.ok());
  return result.error();
}

// A 32-bit program that waits for ever: mov $29,%eax (pause); int $0x80; jmp back.
void write_narrow_program(const std::string& path) {
  const unsigned char code[] = {0xb8, 29, 0, 0, 0, 0xcd, 0x80, 0xeb, 0xf7};
  Elf32_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS32;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_version = EV_CURRENT;
  header.e_type = ET_EXEC;
  header.e_machine = EM_386;
  header.e_ehsize = sizeof header;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf32_Phdr);
  header.e_phnum = 1;
  header.e_entry = 0x08048000 + sizeof header + sizeof(Elf32_Phdr);
  Elf32_Phdr segment{PT_LOAD, 0, 0x08048000, 0x08048000, 4096, 4096, PF_R | PF_X, 4096};
  std::string file(reinterpret_cast<const char*>(&header), sizeof header);
  file.append(reinterpret_cast<const char*>(&segment), sizeof segment);
  file.append(reinterpret_cast<const char*>(code), sizeof code);
  file.resize(4096);
  std::ofstream(path, std::ios::binary) << file;
  ::chmod(path.c_str(), 0755);
}

}  // namespace

TEST_CASE("no process, zombies and kernel threads are refused with what is wrong") {
  CHECK(load_error(0x7fffffff).reason == Reason::no_such_process);
  CHECK(load_error(-1).reason == Reason::no_such_process);

  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  const Error zombie = load_error(child);
  CHECK(zombie.reason == Reason::unsupported_target);
  CHECK(contains(zombie.message, "zombie"));
  ::waitpid(child, nullptr, 0);

  if (process::is_kernel_thread(2)) {
    const Error kernel = load_error(2);
    CHECK(kernel.reason == Reason::unsupported_target);
    CHECK(contains(kernel.message, "kernel thread"));
    CHECK(contains(kernel.message, "/proc/PID/exe"));
  }
}

TEST_CASE("a 32-bit process is refused") {
  const std::string path = fixtures() + "/fixture_narrow";
  write_narrow_program(path);
  int failed[2];
  REQUIRE(::pipe2(failed, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(path.c_str(), path.c_str(), static_cast<char*>(nullptr));
    [[maybe_unused]] const auto n = ::write(failed[1], "x", 1);  // this kernel runs no 32-bit programs
    ::_exit(127);
  }
  ::close(failed[1]);
  char byte = 0;
  const bool runs = ::read(failed[0], &byte, 1) == 0;  // the exec closes the pipe
  ::close(failed[0]);
  if (runs) {
    const Error error = load_error(child);
    CHECK(error.reason == Reason::unsupported_target);
    CHECK(
        contains(error.message, "a 32-bit process; probed traces 64-bit programs of this machine's architecture only"));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::unlink(path.c_str());
}

TEST_CASE("the compiler's clones stand for the function they come from, its pieces don't") {
  const Running target(fixtures() + "/fixture_pie");
  REQUIRE(target.ready());
  ModuleCache cache;
  const auto symbols = load(target.pid(), cache);
  CHECK(only_site(*symbols, symbol("only_clone")).symbol == "only_clone.constprop.0");
  CHECK(only_site(*symbols, symbol("both")).symbol == "both");
  CHECK(only_site(*symbols, symbol("both.isra.0")).symbol == "both.isra.0");
  const Error two = refusal(*symbols, symbol("two_clones"));
  CHECK(two.reason == Reason::ambiguous_symbol);
  CHECK(contains(two.hint, "two_clones.constprop.0"));
  CHECK(contains(two.hint, "two_clones.constprop.1"));
  const Error piece = refusal(*symbols, symbol("only_piece"));
  CHECK(piece.reason == Reason::no_such_symbol);
  CHECK(contains(piece.hint, "only_piece.part.0"));
}

TEST_CASE("two private functions of one name are ambiguous, and the hint can be typed") {
  const Running target(fixtures() + "/fixture_pie");
  REQUIRE(target.ready());
  ModuleCache cache;
  const auto symbols = load(target.pid(), cache);
  const Error error = refusal(*symbols, symbol("twin"));
  CHECK(error.reason == Reason::ambiguous_symbol);
  // With debug information, by the files that they are in.
  std::set<std::uint64_t> addresses;
  for (const char* file : {"fixture.cpp", "fixture_other.cpp"}) {
    CAPTURE(file);
    CHECK(contains(error.hint, std::string(file) + ":twin"));
    lang::Location location;
    location.where = lang::LineLocation{file, 0, "twin"};
    const Site site = only_site(*symbols, location);
    CHECK(site.symbol == "twin(int)");
    addresses.insert(site.address.value);
  }
  CHECK(addresses.size() == 2);
}

TEST_CASE("an untyped assembly label can be probed by name") {
  const Running target(fixtures() + "/fixture_pie");
  REQUIRE(target.ready());
  ModuleCache cache;
  const auto symbols = load(target.pid(), cache);
  CHECK(only_site(*symbols, symbol("fixture_label")).address == target.fact("fixture_label"));
  const Site inside = value_of(symbols->site_at(target.fact("fixture_label") + 2));
  CHECK(inside.symbol == "fixture_label");
  CHECK(inside.offset == 2);
}

TEST_CASE("an IFUNC of any program leads to the implementation in use, never to the resolver") {
  for (const char* program : {"fixture_pie", "fixture_nopie", "fixture_static"}) {
    CAPTURE(program);
    const Running target(fixtures() + "/" + program);
    REQUIRE(target.ready());
    ModuleCache cache;
    const auto symbols = load(target.pid(), cache);
    const Site site = only_site(*symbols, symbol("chosen"));
    CHECK(site.address == target.fact("chosen"));
    CHECK(site.symbol == "chosen_one");
    const std::vector<Site> sites = value_of(symbols->resolve(symbol("cho*")));
    CHECK(sites.size() == 2);  // both implementations by their own names, one of them also as the IFUNC
    for (const Site& s : sites) CHECK(s.symbol.starts_with("chosen_"));
  }
}

TEST_CASE("an IFUNC that nobody has resolved is refused, its implementations listed") {
  const Running target(fixtures() + "/fixture_pie");
  REQUIRE(target.ready());
  ModuleCache cache;
  const auto symbols = load(target.pid(), cache);
  const Error error = refusal(*symbols, symbol("unused"));
  CHECK(error.reason == Reason::ambiguous_symbol);
  CHECK(contains(error.hint, "fixture_pie:unused_fast"));
  CHECK(contains(error.hint, "fixture_pie:unused_slow"));
  CHECK_FALSE(contains(error.hint, "unused_choose"));
  CHECK(value_of(symbols->resolve(symbol("unused*"))).size() == 2);  // a glob leaves it out
}

TEST_CASE("without the privilege for map_files, files are opened by path and checked") {
  // In a child, since privileges don't come back.
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
    if (::access((fixtures() + "/fixture_pie").c_str(), X_OK) != 0) ::_exit(2);
    const Running target(fixtures() + "/fixture_pie");
    ModuleCache cache;
    const auto symbols = TargetSymbols::load(target.pid(), cache);
    if (!symbols.ok()) ::_exit(3);
    const auto sites = (*symbols)->resolve(symbol("fixture_hidden"));
    if (!sites.ok() || (*sites)[0].address != target.fact("fixture_hidden")) ::_exit(4);
    const auto libc = (*symbols)->resolve(symbol("malloc", 0, "libc"));
    ::_exit(libc.ok() ? 0 : 5);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) return;  // not root, or the build folder is private
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("another user's process is refused") {
  const Running target(fixtures() + "/fixture_pie");
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(2);
    ModuleCache cache;
    const auto symbols = TargetSymbols::load(target.pid(), cache);
    ::_exit(!symbols.ok() && symbols.error().reason == Reason::permission_denied ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE(WIFEXITED(status));
  CHECK((WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2));
}

TEST_CASE("an alias names the same place, and is shown as it was asked for") {
  const Running target(fixtures() + "/fixture_pie");
  REQUIRE(target.ready());
  ModuleCache cache;
  const auto symbols = load(target.pid(), cache);
  const Site alias = only_site(*symbols, symbol("fixture_alias"));
  CHECK(alias.symbol == "fixture_alias");
  CHECK(alias.address == target.fact("fixture_first"));
  std::size_t at_first = 0;
  for (const Site& s : value_of(symbols->resolve(symbol("fixture_*")))) at_first += s.address == alias.address;
  CHECK(at_first == 1);
}

TEST_CASE("the main program goes by the name it was started under") {
  // Debian's redis-server is a symbolic link to redis-check-rdb; this does the same.
  const std::string link = fixtures() + "/fixture_other_name";
  ::unlink(link.c_str());
  REQUIRE(::symlink((fixtures() + "/fixture_pie").c_str(), link.c_str()) == 0);
  const Running target(link);
  REQUIRE(target.ready());
  ModuleCache cache;
  const auto symbols = load(target.pid(), cache);
  for (const std::string& module : {std::string("fixture_other_name"), std::string("fixture_pie"), link})
    CHECK(only_site(*symbols, symbol("fixture_first", 0, module)).address == target.fact("fixture_first"));
  ::unlink(link.c_str());
}

TEST_CASE("40,000 functions are resolved by one glob in no time, in address order") {
  const Running target(fixtures() + "/fixture_many");
  REQUIRE(target.ready());
  ModuleCache cache;
  const auto start = std::chrono::steady_clock::now();
  const auto symbols = load(target.pid(), cache);
  const std::vector<Site> sites = value_of(symbols->resolve(symbol("many_*")));
  const auto taken = std::chrono::steady_clock::now() - start;
  CHECK(sites.size() == 40000);
  CHECK(std::is_sorted(sites.begin(), sites.end(), [](const Site& a, const Site& b) { return a.address < b.address; }));
  CHECK(taken < std::chrono::seconds(2));  // the goal is 0.5 s on a quiet machine
  MESSAGE("load and resolve: " << std::chrono::duration_cast<std::chrono::milliseconds>(taken).count() << " ms");
}

TEST_CASE("modules are shared between targets, and the cache stays within its bounds") {
  const Running one(fixtures() + "/fixture_pie"), two(fixtures() + "/fixture_pie");
  ModuleCache cache;
  load(one.pid(), cache);
  const std::size_t modules = cache.size();
  load(two.pid(), cache);
  CHECK(cache.size() == modules);
  ModuleCache::Options small;
  small.max_modules = 2;
  ModuleCache tiny(small);
  const auto symbols = load(one.pid(), tiny);
  CHECK(tiny.size() == 2);
  CHECK(only_site(*symbols, symbol("fixture_first")).address == one.fact("fixture_first"));
}

TEST_CASE("many threads may load and search the same modules at once") {
  const Running target(fixtures() + "/fixture_pie");
  ModuleCache cache;
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const auto symbols = TargetSymbols::load(target.pid(), cache);
      if (!symbols.ok()) return;
      const auto sites = (*symbols)->resolve(symbol("fixture_hidden"));
      const auto text = (*symbols)->symbolize(target.fact("fixture_hidden") + 1);
      right += sites.ok() && (*sites)[0].address == target.fact("fixture_hidden") && text && text->offset == 1;
    });
  for (std::thread& t : threads) t.join();
  CHECK(right == 8);
}

// The file of a process' program, as the cache knows it.
std::string identity_of(pid_t pid, const std::string& path) {
  const UniqueFd fd(::open(("/proc/" + std::to_string(pid) + "/exe").c_str(), O_RDONLY | O_CLOEXEC));
  const auto files = TargetFiles::of(pid);
  REQUIRE(files.ok());
  return files->identity(fd.get(), path);
}

TEST_CASE("processes that have a file mapped share what was read of it; a file in its place is read anew") {
  const std::string path = fixtures() + "/fixture_replaced";
  output_of("cp " + fixtures() + "/fixture_pie " + path);
  ModuleCache cache;
  const auto first = std::make_unique<Running>(path);
  REQUIRE(first->ready());
  CHECK(only_site(*load(first->pid(), cache), symbol("fixture_hidden")).address == first->fact("fixture_hidden"));
  const std::string identity = identity_of(first->pid(), path);
  const auto module = cache.find(identity);
  REQUIRE(module);
  const std::size_t size = cache.size(), bytes = module->memory_bytes();
  {
    const Running second(path);
    REQUIRE(second.ready());
    CHECK(only_site(*load(second.pid(), cache), symbol("fixture_hidden")).address == second.fact("fixture_hidden"));
    CHECK(identity_of(second.pid(), path) == identity);
    CHECK(cache.find(identity) == module);
    CHECK(module->memory_bytes() == bytes);
    CHECK(cache.size() == size);
  }
  // Another program by that name, while the first one runs; then a copy of that one.
  for (const char* program : {"fixture_nopie", "fixture_pie"}) {
    CAPTURE(std::string(program));
    output_of("rm " + path + " && cp " + fixtures() + "/" + program + " " + path);
    const Running other(path);
    REQUIRE(other.ready());
    CHECK(only_site(*load(other.pid(), cache), symbol("fixture_hidden")).address == other.fact("fixture_hidden"));
    CHECK(identity_of(other.pid(), path) != identity);
    CHECK(cache.find(identity_of(other.pid(), path)) != module);
    CHECK(only_site(*load(first->pid(), cache), symbol("fixture_hidden")).address == first->fact("fixture_hidden"));
  }
  ::unlink(path.c_str());
}

TEST_CASE("a file that is written over between two runs is read anew") {
  const std::string path = fixtures() + "/fixture_rewritten";
  ModuleCache cache;
  std::string identity;
  for (const char* program : {"fixture_pie", "fixture_nopie", "fixture_pie"}) {
    output_of("cat " + fixtures() + "/" + program + " > " + path + " && chmod +x " + path);  // the same inode
    const Running target(path);
    REQUIRE(target.ready());
    CHECK(identity_of(target.pid(), path) != identity);
    identity = identity_of(target.pid(), path);
    CHECK(only_site(*load(target.pid(), cache), symbol("fixture_hidden")).address == target.fact("fixture_hidden"));
  }
  ::unlink(path.c_str());
}

}  // namespace probed::symbols::test
