// Names of this very process: what they lead to, and what is said when they lead nowhere or to several places.
#include <dlfcn.h>
#include <math.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

#include <filesystem>

#include "daemon/lang/definition.hpp"
#include "support.hpp"

// Functions to find. Each does something else, or the linker may fold them.
namespace calc {
__attribute__((noinline, used)) int add(int a, int b) { return a + b; }
__attribute__((noinline, used)) double add(double a, double b) { return a + b; }
__attribute__((noinline, used)) int only(const char* p) { return *p + 1; }
struct Machine {
  int state = 3;
  __attribute__((noinline, used)) int run(int n) const { return state * n; }
  __attribute__((noinline, used)) int operator()(int n) { return state += n; }
  __attribute__((noinline, used)) int look(int n) const { return state + n * 2; }
  __attribute__((noinline, used)) int look(long n) const { return state + static_cast<int>(n * 3); }
  __attribute__((noinline, used)) int both(int n) { return state += n * 4; }
  __attribute__((noinline, used)) int both(int n) const { return state + n * 5; }
};
template <class T>
__attribute__((noinline, used)) T twice(T x) {
  return x + x;
}
template int twice<int>(int);
template <class T>
__attribute__((noinline, used)) T larger(T a, T b) {
  return a > b ? a : b;
}
template int larger<int>(int, int);
template unsigned long larger<unsigned long>(unsigned long, unsigned long);
__attribute__((noinline, used, abi_tag("v2"))) int tagged(int x) { return x * 19; }
template <class T>
__attribute__((noinline, used, abi_tag("v2"))) T made(int x) {
  return static_cast<T>(x * 23);
}
template long made<long>(int);
__attribute__((noinline, used)) int half_tagged(int x) { return x * 29; }
__attribute__((noinline, used, abi_tag("v2"))) int half_tagged(long x) { return static_cast<int>(x * 31); }
__attribute__((used)) int counter = 5;
}  // namespace calc

extern "C" {
__attribute__((noinline, used)) int symbols_test_plain(int x) { return x * 17 + 3; }
__attribute__((used)) int symbols_test_data[4] = {1, 2, 3, 4};
__thread int symbols_test_tls __attribute__((used)) = 9;
// calc::cloned(int) and calc::cloned(long), of which the compiler has left clones only.
__attribute__((noinline, used)) int cloned_int(int x) __asm__("_ZN4calc6clonedEi.isra.0");
int cloned_int(int x) { return x * 37; }
__attribute__((noinline, used)) int cloned_long(int x) __asm__("_ZN4calc6clonedEl.isra.0");
int cloned_long(int x) { return x * 41; }
// Has the name of a function of libm.
__attribute__((noinline, used)) double lgamma_r_probed(double x) { return x * 1.5; }
}

namespace probed::symbols::test {
namespace {

RemoteAddr of(const void* pointer) { return {reinterpret_cast<std::uint64_t>(pointer)}; }
template <class R, class... A>
RemoteAddr of(R (*function)(A...)) {
  return {reinterpret_cast<std::uint64_t>(function)};
}

// What libc itself calls by this name: a sanitizer, when the tests are built with one, has some of libc's names too.
RemoteAddr libc_symbol(const char* name) {
  static void* const libc = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  return of(::dlsym(libc, name));
}

std::shared_ptr<const TargetSymbols> self() {
  static ModuleCache cache;
  return load(::getpid(), cache);
}

}  // namespace

TEST_CASE("a plain function is found with all there is to say about it") {
  const auto symbols = self();
  const Site site = only_site(*symbols, symbol("symbols_test_plain"));
  CHECK(site.address == of(symbols_test_plain));
  CHECK(site.symbol == "symbols_test_plain");
  CHECK(site.offset == 0);
  CHECK(site.module == "symbols_test");
  CHECK(site.module_path.ends_with("/symbols_test"));
  CHECK(site.function_start == site.address);
  CHECK(site.function_size > 0);
  const Site there = only_site(*symbols, address(site.address.value + 1));
  CHECK(there.symbol == "symbols_test_plain");
  CHECK(there.offset == 1);
  CHECK(there.function_start == site.address);
  CHECK(there.function_size == site.function_size);
  CHECK(there.file_offset == site.file_offset + 1);
}

TEST_CASE("an offset must lie inside the symbol") {
  const auto symbols = self();
  const Site start = only_site(*symbols, symbol("symbols_test_plain"));
  const Site last = only_site(*symbols, symbol("symbols_test_plain", start.function_size - 1));
  CHECK(last.address == start.address + (start.function_size - 1));
  CHECK(last.function_start == start.address);
  const Error beyond = refusal(*symbols, symbol("symbols_test_plain", start.function_size));
  CHECK(beyond.reason == Reason::bad_definition);
  CHECK(contains(beyond.message, "bytes long"));
  CHECK_FALSE(beyond.hint.empty());
}

TEST_CASE("C++ names are taken with parameters, without, mangled, and with any blanks") {
  const auto symbols = self();
  const RemoteAddr ints = of(static_cast<int (*)(int, int)>(calc::add));
  CHECK(only_site(*symbols, symbol("calc::add(int, int)")).address == ints);
  CHECK(only_site(*symbols, symbol("calc::add(int,int)")).address == ints);
  CHECK(only_site(*symbols, symbol("_ZN4calc3addEii")).address == ints);
  CHECK(only_site(*symbols, symbol("calc::add( double, double )")).address ==
        of(static_cast<double (*)(double, double)>(calc::add)));
  CHECK(only_site(*symbols, symbol("calc::only")).address == of(calc::only));
  CHECK(only_site(*symbols, symbol("calc::only(char const*)")).address == of(calc::only));
  CHECK(only_site(*symbols, symbol("calc::only")).symbol == "calc::only(char const*)");
  CHECK(only_site(*symbols, symbol("calc::Machine::run")).symbol == "calc::Machine::run(int) const");
  CHECK(only_site(*symbols, symbol("calc::Machine::operator()")).symbol == "calc::Machine::operator()(int)");
  CHECK(only_site(*symbols, symbol("calc::twice<int>")).address == of(calc::twice<int>));
  CHECK(only_site(*symbols, symbol("calc::twice")).address == of(calc::twice<int>));
  CHECK(only_site(*symbols, symbol("calc::twice<int>(int)")).address == of(calc::twice<int>));
}

TEST_CASE("an overloaded name without parameters is ambiguous; the hint lists the overloads") {
  const Error error = refusal(*self(), symbol("calc::add"));
  CHECK(error.reason == Reason::ambiguous_symbol);
  CHECK(contains(error.hint, "calc::add(int,int)"));
  CHECK(contains(error.hint, "calc::add(double,double)"));
}

TEST_CASE("scopes may be left out of a name, where one function is left that it may be") {
  const auto symbols = self();
  for (const char* const name : {"calc::run", "calc::run(int)", "calc::Machine::run"})
    CHECK(only_site(*symbols, symbol(name)).symbol == "calc::Machine::run(int) const");
  CHECK(refusal(*symbols, symbol("Machine::add")).reason == Reason::no_such_symbol);
}

TEST_CASE("parameters that no overload has are answered by what there is") {
  const Error error = refusal(*self(), symbol("calc::add(long, long)"));
  CHECK(error.reason == Reason::no_such_symbol);
  CHECK(contains(error.hint, "calc::add(int,int)"));
  CHECK(contains(error.hint, "calc::add(double,double)"));
}

TEST_CASE("a glob takes every matching function once, in address order") {
  const auto symbols = self();
  const std::vector<Site> sites = value_of(symbols->resolve(symbol("calc::add*")));
  REQUIRE(sites.size() == 2);
  CHECK(sites[0].address < sites[1].address);
  CHECK(value_of(symbols->resolve(symbol("symbols_test_pl?in"))).size() == 1);
  CHECK(value_of(symbols->resolve(symbol("symbols_test_[o-q]lain"))).size() == 1);
  // Data doesn't count, nor do functions of other modules that this one imports.
  CHECK(refusal(*symbols, symbol("symbols_test_dat?")).reason == Reason::no_such_symbol);
  for (const Site& s : value_of(symbols->resolve(symbol("*", 0, "symbols_test")))) CHECK(s.module == "symbols_test");
}

TEST_CASE("a name that isn't there gives the nearest ones") {
  const auto symbols = self();
  const Error slip = refusal(*symbols, symbol("symbols_test_plian"));
  CHECK(slip.reason == Reason::no_such_symbol);
  CHECK(contains(slip.hint, "symbols_test_plain"));
  CHECK(contains(refusal(*symbols, symbol("SYMBOLS_TEST_PLAIN")).hint, "symbols_test_plain"));
  CHECK(contains(refusal(*symbols, symbol("Machine::run")).hint, "calc::Machine::run"));
  CHECK(refusal(*symbols, symbol("")).reason == Reason::no_such_symbol);
}

TEST_CASE("errors point at the part of the definition that is wrong") {
  const auto symbols = self();
  lang::Location location = symbol("nosuchthing", 0, "libc");
  location.column = 2;
  CHECK(refusal(*symbols, location).column == 7);  // behind "p libc:"
  location = symbol("malloc", 0, "libnothing");
  location.column = 2;
  CHECK(refusal(*symbols, location).column == 2);
}

TEST_CASE("modules are found by path, file name and soname; unknown ones are refused with what is loaded") {
  const auto symbols = self();
  const RemoteAddr malloc_address = libc_symbol("malloc");
  Dl_info info{};
  REQUIRE(::dladdr(reinterpret_cast<void*>(malloc_address.value), &info) != 0);
  const std::string resolved = std::filesystem::canonical(info.dli_fname);
  for (const std::string module : {"libc", "libc.so", "libc.so.6", info.dli_fname, resolved.c_str()}) {
    CAPTURE(module);
    CHECK(only_site(*symbols, symbol("malloc", 0, module)).address == malloc_address);
  }
  const Error error = refusal(*symbols, symbol("malloc", 0, "libcc"));
  CHECK(error.reason == Reason::no_such_module);
  CHECK(contains(error.hint, "libc.so.6"));
  CHECK(contains(error.hint, "symbols_test"));
}

// The import:
[[maybe_unused]] char* (*const volatile import_of_l64a)(long) = ::l64a;

TEST_CASE("without a module, an exported name of a library is found; the program's import of it doesn't count") {
  const Site site = only_site(*self(), symbol("l64a"));
  CHECK(site.address == libc_symbol("l64a"));
  CHECK(site.module == "libc.so.6");
}

TEST_CASE("an exported name of several libraries is ambiguous; the hint lists MODULE:NAME") {
  void* a = ::dlopen((fixtures() + "/libfixture_a.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  void* b = ::dlopen((fixtures() + "/libfixture_b.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(a);
  REQUIRE(b);
  const auto symbols = self();
  const Error error = refusal(*symbols, symbol("fixture_shared_name"));
  CHECK(error.reason == Reason::ambiguous_symbol);
  CHECK(contains(error.hint, "libfixture_a:fixture_shared_name"));
  CHECK(contains(error.hint, "libfixture_b:fixture_shared_name"));
  CHECK(only_site(*symbols, symbol("fixture_shared_name", 0, "libfixture_b")).address ==
        of(::dlsym(b, "fixture_shared_name")));
  // A private function doesn't compete with an exported one.
  CHECK(only_site(*symbols, symbol("fixture_half_private")).address == of(::dlsym(a, "fixture_half_private")));
  ::dlclose(b);
  ::dlclose(a);
}

TEST_CASE("strlen is the implementation this process uses") {
  const auto symbols = self();
  const RemoteAddr used = libc_symbol("strlen");
  const Site site = only_site(*symbols, symbol("strlen", 0, "libc"));
  CHECK(site.address == used);
  CHECK(site.offset == 0);
  CHECK(site.function_start == used);
  CHECK_FALSE(site.symbol.empty());
  // A glob over libc has implementations, and no place twice.
  const std::vector<Site> sites = value_of(symbols->resolve(symbol("str*", 0, "libc")));
  bool found = false;
  for (std::size_t i = 0; i < sites.size(); ++i) {
    found = found || sites[i].address == used;
    if (i > 0) CHECK(sites[i - 1].address < sites[i].address);
  }
  CHECK(found);
}

TEST_CASE("an IFUNC whose implementation is in the vdso leads there") {
  // The call makes this program import it, and the loader bind it.
  timeval now{};
  REQUIRE(::gettimeofday(&now, nullptr) == 0);
  const auto symbols = self();
  const RemoteAddr used = libc_symbol("gettimeofday");
  const Site site = only_site(*symbols, symbol("gettimeofday", 0, "libc"));
  CHECK(site.address == used);
}

TEST_CASE("the vdso's symbols are read from memory") {
  const auto symbols = self();
  if (::getauxval(AT_SYSINFO_EHDR) == 0) return;
  // x86-64, arm64.
  const bool first = symbols->resolve(symbol("__vdso_clock_gettime", 0, "vdso")).ok();
  const std::string name = first ? "__vdso_clock_gettime" : "__kernel_clock_gettime";
  const Site site = only_site(*symbols, symbol(name, 0, "vdso"));
  CHECK(site.module == "[vdso]");
  const Mapping* mapping = symbols->mapping_at(site.address);
  REQUIRE(mapping);
  CHECK(mapping->path == "[vdso]");
  CHECK(only_site(*symbols, symbol(name, 0, "[vdso]")).address == site.address);
  CHECK(only_site(*symbols, symbol(name)).address == site.address);
  // libc's exported name isn't made ambiguous by the vdso's.
  CHECK(only_site(*symbols, symbol("getcpu")).module == "libc.so.6");
}

TEST_CASE("versioned names are told apart; a plain one means the default version") {
  const auto symbols = self();
  void* const libc = ::dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(libc);
  // What a machine's first version of glibc is called: x86-64, arm64.
  const std::string first = ::dlvsym(libc, "fmemopen", "GLIBC_2.2.5") ? "GLIBC_2.2.5" : "GLIBC_2.17";
  void* const old_version = ::dlvsym(libc, "fmemopen", first.c_str());
  void* const new_version = ::dlvsym(libc, "fmemopen", "GLIBC_2.22");
  REQUIRE(old_version);
  REQUIRE(new_version);
  CHECK(only_site(*symbols, symbol("fmemopen", 0, "libc")).address == of(new_version));
  CHECK(only_site(*symbols, symbol("fmemopen@@GLIBC_2.22", 0, "libc")).address == of(new_version));
  const Site old_site = only_site(*symbols, symbol("fmemopen@" + first, 0, "libc"));
  CHECK(old_site.symbol == "fmemopen");
  CHECK(old_site.address == of(old_version));
  CHECK(old_site.address != of(new_version));
  CHECK(refusal(*symbols, symbol("fmemopen@GLIBC_9", 0, "libc")).reason == Reason::no_such_symbol);
}

TEST_CASE("data is found by name; what has no address or no name is refused") {
  const auto symbols = self();
  CHECK(value_of(symbols->resolve_data("symbols_test_data")) == of(symbols_test_data));
  CHECK(value_of(symbols->resolve_data("calc::counter")) == of(&calc::counter));
  CHECK(value_of(symbols->resolve_data("symbols_test_plain")) == of(symbols_test_plain));
  CHECK(value_of(symbols->resolve_data("libc:environ")).value != 0);
  CHECK(symbols->resolve_data("symbols_test_tls").error().reason == Reason::unsupported);
  const auto missing = symbols->resolve_data("symbols_test_dato");
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().reason == Reason::no_such_symbol);
  CHECK(contains(missing.error().hint, "symbols_test_data"));
}

TEST_CASE("addresses must be mapped and executable") {
  const auto symbols = self();
  CHECK(refusal(*symbols, address(0x10)).reason == Reason::unmapped_address);
  CHECK(refusal(*symbols, address(of(symbols_test_data).value)).reason == Reason::not_executable);
}

TEST_CASE("executable memory without a file has a place but no name") {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  const Site site = only_site(*self(), address(of(page).value + 5));
  CHECK(site.symbol.empty());
  CHECK(site.module.empty());
  CHECK(site.function_start == RemoteAddr{});
  ::munmap(page, 4096);
}

TEST_CASE("a line of no file is refused, clearly; a static probe that isn't there says where to look") {
  lang::Location location;
  location.where = lang::LineLocation{"no_such_source.c", 12, {}};
  const Error line = refusal(*self(), location);
  // Built without -g there is no debug information at all.
  CHECK((line.reason == Reason::no_such_symbol || line.reason == Reason::unsupported));
  CHECK(contains(line.message, "debug information"));
  location.where = lang::UsdtLocation{"libc", "setjmp"};
  const Error probe = refusal(*self(), location);
  CHECK(probe.reason == Reason::no_such_symbol);
  CHECK(contains(probe.hint, "--usdt"));
}

TEST_CASE("addresses are symbolized, code and data, and nothing is made up") {
  const auto symbols = self();
  const auto code = symbols->symbolize(of(calc::only) + 2);
  REQUIRE(code);
  CHECK(code->symbol == "calc::only(char const*)");
  CHECK(code->offset == 2);
  CHECK(code->module == "symbols_test");
  const auto data = symbols->symbolize(of(symbols_test_data) + 4);
  REQUIRE(data);
  CHECK(data->symbol == "symbols_test_data");
  CHECK(data->offset == 4);
  const int on_stack = 0;
  CHECK_FALSE(symbols->symbolize(of(&on_stack)));
  CHECK_FALSE(symbols->symbolize({0x10}));
}

TEST_CASE("functions are listed by glob, bounded, in address order") {
  const auto symbols = self();
  const auto list = symbols->functions("*symbols_test_plain*", 0);
  REQUIRE(list.size() == 1);
  CHECK(list[0].address == of(symbols_test_plain));
  CHECK(list[0].module == "symbols_test");
  CHECK(list[0].size > 0);
  const auto cxx = symbols->functions("calc::only", 0);
  REQUIRE(cxx.size() == 1);
  CHECK(cxx[0].name == "calc::only(char const*)");
  CHECK(cxx[0].linkage_name == "_ZN4calc4onlyEPKc");
  CHECK(symbols->functions("", 10).size() == 10);
  CHECK(symbols->functions("", 0).size() > 1000);
}

TEST_CASE("ABI tags may be left out, and their brackets are no glob's") {
  const auto symbols = self();
  for (const char* name : {"calc::tagged", "calc::tagged(int)", "calc::tagged[abi:v2]", "calc::tagged[abi:v2](int)",
                           "calc::tagge[d]*", "calc::tagge[d]"}) {
    CAPTURE(name);
    const Site site = only_site(*symbols, symbol(name));
    CHECK(site.address == of(calc::tagged));
    CHECK(site.symbol == "calc::tagged[abi:v2](int)");
  }
  CHECK_FALSE(value_of(symbols->places(symbol("calc::tagged[abi:v2]"))).by_glob);
  CHECK(value_of(symbols->places(symbol("calc::tagge[d]"))).by_glob);
  for (const char* name : {"calc::made", "calc::made<long>", "calc::made<long>(int)", "calc::made[abi:v2]<long>",
                           "calc::made[abi:v2]<long>(int)"}) {
    CAPTURE(name);
    CHECK(only_site(*symbols, symbol(name)).address == of(calc::made<long>));
  }
  for (const char* pattern : {"calc::tagged", "calc::tagged[abi:v2]", "symbols_test:calc::tagged[abi:v2](int)"}) {
    CAPTURE(pattern);
    const auto listed = value_of(symbols->list_functions(pattern, 0));
    REQUIRE(listed.size() == 1);
    CHECK(listed[0].address == of(calc::tagged));
  }
  // None of several is dropped in silence.
  const Error both = refusal(*symbols, symbol("calc::half_tagged"));
  CHECK(both.reason == Reason::ambiguous_symbol);
  CHECK(contains(both.hint, "calc::half_tagged(int)"));
  CHECK(only_site(*symbols, symbol("calc::half_tagged(int)")).address ==
        of(static_cast<int (*)(int)>(calc::half_tagged)));
  CHECK(only_site(*symbols, symbol("calc::half_tagged(long)")).address ==
        of(static_cast<int (*)(long)>(calc::half_tagged)));
}

TEST_CASE("names of which one is to be chosen can be pasted into a definition") {
  const auto symbols = self();
  const auto error = refusal(*symbols, symbol("calc::larger"));
  REQUIRE(error.reason == Reason::ambiguous_symbol);
  for (const char* name : {"calc::larger<int>(int,int)", "calc::larger<unsigned long>(unsigned long,unsigned long)"}) {
    CAPTURE(name);
    CHECK((contains(error.hint, ": " + std::string(name)) || contains(error.hint, ", " + std::string(name))));
    const auto definition = lang::parse_definition("r:x " + std::string(name) + " $retval");
    REQUIRE(definition.ok());
    const Site site = only_site(*symbols, definition->location);
    CHECK((site.address == of(calc::larger<int>)) == (std::string(name).find("int>") != std::string::npos));
    CHECK(only_site(*symbols, symbol(site.symbol)).address == site.address);  // as it is shown
  }
  const std::string clones = refusal(*symbols, symbol("calc::cloned")).hint;
  CHECK((clones.ends_with(": calc::cloned(int), calc::cloned(long)") ||
         clones.ends_with(": calc::cloned(long), calc::cloned(int)")));
  CHECK(only_site(*symbols, symbol("calc::cloned(long)")).address == of(cloned_long));
}

TEST_CASE("the const behind the parameters may be left out where one function is left") {
  const auto symbols = self();
  const auto machine = [&](const char* name) { return only_site(*symbols, symbol(name)).symbol; };
  CHECK(machine("calc::Machine::look(int)") == "calc::Machine::look(int) const");
  CHECK(machine("calc::Machine::look(long)") == "calc::Machine::look(long) const");
  CHECK(machine("calc::Machine::both(int)") == "calc::Machine::both(int)");
  CHECK(machine("calc::Machine::both(int) const") == "calc::Machine::both(int) const");
  CHECK(machine("calc::Machine::both(int)const") == "calc::Machine::both(int) const");
  CHECK(refusal(*symbols, symbol("calc::Machine::look(char)")).reason == Reason::no_such_symbol);
  CHECK(refusal(*symbols, symbol("calc::Machine::look")).reason == Reason::ambiguous_symbol);
}

TEST_CASE("a library that is mapped twice is ambiguous, each copy by its address isn't") {
  void* second = ::dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW);
  if (!second) return;
  void* first = ::dlopen("libm.so.6", RTLD_NOW);
  REQUIRE(first);
  const auto symbols = self();
  const RemoteAddr a = of(::dlsym(first, "cbrt")), b = of(::dlsym(second, "cbrt"));
  REQUIRE(a != b);
  const Error error = refusal(*symbols, symbol("cbrt", 0, "libm"));
  CHECK(error.reason == Reason::ambiguous_symbol);
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(b.value));
  CHECK(contains(error.hint, text));
  CHECK(only_site(*symbols, address(a.value)).symbol == "cbrt");
  CHECK(only_site(*symbols, address(b.value)).symbol == "cbrt");
  ::dlclose(second);
  ::dlclose(first);
}

}  // namespace probed::symbols::test
