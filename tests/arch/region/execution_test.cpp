// Real libraries with tens of thousands of their instructions replaced by jumps compute what they compute without.
//
// Each run is a child process of its own that loads a copy of the library, patches it or not, and prints what a
// workload computed; the two outputs must be equal. A jump that overwrote something that is led to shows as a crash or
// as another output.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <link.h>
#include <regex.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <locale>
#include <sstream>
#include <string>

#include "tests/arch/region/patcher.hpp"

using namespace probed;
using namespace probed::test;

namespace {

// Prints its results to stdout.
using Workload = void (*)(void* library);

struct Run {
  std::string output;
  int status = 0;  // as waitpid has it
};

struct Patching {
  unsigned seed = 0;  // 0: none
  unsigned every = 1;
};

constexpr unsigned kLongest = 60;  // seconds; they take one or two
constexpr unsigned kMostSites = 60'000;

// How often each library is run; REGION_SEEDS in the environment asks for more.
unsigned seeds() {
  const char* const asked = std::getenv("REGION_SEEDS");
  return asked != nullptr ? static_cast<unsigned>(std::atoi(asked)) : 1;
}

void patch(void* library, const std::string& path, const Patching& patching) {
  link_map* map = nullptr;
  ::dlinfo(library, RTLD_DI_LINKMAP, &map);
  // Never destroyed: the library's own destructors run through the detours, too.
  static Patcher& patcher = *new Patcher(path, map->l_addr);
  const PatchCounts counts = patcher.patch(patching.seed, patching.every, kMostSites);
  std::fprintf(stderr, "%s: %u near, %u island, %u refused\n", path.c_str(), counts.near, counts.island,
               counts.refused);
  std::atexit([] {
    const std::uint64_t hits = patcher.hits();
    std::fprintf(stderr, "  %llu hits\n", static_cast<unsigned long long>(hits));
    if (hits == 0) ::_exit(77);
  });
}

[[noreturn]] void child(int out, const std::string& path, Workload workload, const Patching& patching) {
  ::dup2(out, STDOUT_FILENO);
  ::alarm(kLongest);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) ::_exit(78);
  if (patching.seed != 0) patch(library, path, patching);
  workload(library);
  std::exit(0);
}

Run run(const std::string& path, Workload workload, const Patching& patching) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  REQUIRE(pid >= 0);
  if (pid == 0) child(ends[1], path, workload, patching);
  ::close(ends[1]);
  Run result;
  char part[4096];
  for (ssize_t n; (n = ::read(ends[0], part, sizeof part)) > 0;)
    result.output.append(part, static_cast<std::size_t>(n));
  ::close(ends[0]);
  ::waitpid(pid, &result.status, 0);
  return result;
}

// Empty: not installed.
std::string path_of(const char* name) {
  void* const library = ::dlopen(name, RTLD_LAZY);
  if (library == nullptr) return {};
  link_map* map = nullptr;
  ::dlinfo(library, RTLD_DI_LINKMAP, &map);
  return std::filesystem::canonical(map->l_name);
}

// Empty: none.
std::string first_difference(const std::string& got, const std::string& expected) {
  const auto [a, b] = std::mismatch(got.begin(), got.end(), expected.begin(), expected.end());
  if (a == got.end() && b == expected.end()) return {};
  const auto line = [](const std::string& text, auto at) {
    const auto offset = static_cast<std::size_t>(at - text.begin());
    return text.substr(offset - std::min<std::size_t>(offset, 60), 120);
  };
  return line(got, a) + "\ninstead of\n" + line(expected, b);
}

void compare(const char* name, Workload workload, unsigned every) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  MESSAGE("skipped: " << name << ": a sanitizer's interceptors and leak reports are in the way");
  return;
#endif
  const std::string path = path_of(name);
  if (path.empty()) {
    MESSAGE("skipped: " << name << " is not installed");
    return;
  }
  const Run plain = run(path, workload, {});
  REQUIRE(plain.status == 0);
  REQUIRE(plain.output.size() > 100);
  for (unsigned seed = 1; seed <= seeds(); ++seed) {
    const Run patched = run(path, workload, {seed, every});
    CAPTURE(seed);
    CHECK(patched.status == 0);
    CHECK(first_difference(patched.output, plain.output) == "");
  }
}

template <class Function>
Function* symbol(void* library, const char* name) {
  void* const found = ::dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "no %s\n", name);
    ::_exit(79);
  }
  return reinterpret_cast<Function*>(found);
}

void print_hex(const unsigned char* bytes, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) std::printf("%02x", bytes[i]);
  std::printf("\n");
}

void digest(void* library, const char* name, const std::string& text) {
  using Digest = int(const void*, std::size_t, unsigned char*, unsigned*, const void*, void*);
  const void* const kind = symbol<const void*(const char*)>(library, "EVP_get_digestbyname")(name);
  unsigned char out[64];
  unsigned size = 0;
  if (kind == nullptr ||
      symbol<Digest>(library, "EVP_Digest")(text.data(), text.size(), out, &size, kind, nullptr) != 1)
    return;
  std::printf("%s ", name);
  print_hex(out, size);
}

void encrypt(void* library, const char* name, const std::string& text) {
  using Init = int(void*, const void*, void*, const unsigned char*, const unsigned char*);
  using Update = int(void*, unsigned char*, int*, const unsigned char*, int);
  const void* const kind = symbol<const void*(const char*)>(library, "EVP_get_cipherbyname")(name);
  void* const context = symbol<void*()>(library, "EVP_CIPHER_CTX_new")();
  unsigned char key[32] = "0123456789abcdef0123456789abcde", iv[16] = "fedcba987654321";
  std::string out(text.size() + 64, '\0');
  int size = 0;
  symbol<Init>(library, "EVP_EncryptInit_ex")(context, kind, nullptr, key, iv);
  symbol<Update>(library, "EVP_EncryptUpdate")(context, reinterpret_cast<unsigned char*>(out.data()), &size,
                                               reinterpret_cast<const unsigned char*>(text.data()),
                                               static_cast<int>(text.size()));
  std::printf("%s %d ", name, size);
  digest(library, "SHA256", out.substr(0, static_cast<std::size_t>(size)));
  symbol<void(void*)>(library, "EVP_CIPHER_CTX_free")(context);
}

void power(void* library) {
  using Parse = int(void**, const char*);
  using Power = int(void*, const void*, const void*, const void*, void*);
  void *base = nullptr, *exponent = nullptr, *modulus = nullptr;
  const auto parse = symbol<Parse>(library, "BN_hex2bn");
  parse(&base, "123456789abcdef0fedcba9876543210123456789abcdef0fedcba98765432100f");
  parse(&exponent, "fedcba9876543210123456789abcdef0fedcba9876543210123456789abcdef01");
  std::string odd;
  for (int i = 0; i < 32; ++i) odd += "d1c2b3a495867768";
  parse(&modulus, (odd + "1").c_str());
  void* const out = symbol<void*()>(library, "BN_new")();
  void* const context = symbol<void*()>(library, "BN_CTX_new")();
  symbol<Power>(library, "BN_mod_exp")(out, base, exponent, modulus, context);
  std::printf("%s\n", symbol<char*(const void*)>(library, "BN_bn2hex")(out));
}

void cryptography(void* library) {
  std::string text(100'000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 3);
  for (const char* name : {"MD5", "SHA1", "SHA256", "SHA512", "SHA3-256", "BLAKE2b512", "RIPEMD160"}) {
    digest(library, name, text);
    digest(library, name, "abc");
  }
  for (const char* name : {"AES-128-CBC", "AES-256-CTR", "AES-256-GCM", "ChaCha20-Poly1305", "CAMELLIA-128-CBC"})
    encrypt(library, name, text);
  power(library);
}

// Switch tables (sre, unicode), computed gotos (the interpreter's loop), callbacks, longjmp-free error paths.
constexpr char kScript[] = R"(
import re, json, math, random, itertools, collections, functools, textwrap, string, datetime, decimal, sys
random.seed(7)
class Node:
    def __init__(self, v): self.v = v; self.kids = []
    def add(self, k): self.kids.append(k); return self
    def walk(self):
        yield self.v
        for k in self.kids: yield from k.walk()
def tree(n): return Node(n).add(tree(n - 1)).add(tree(n - 2)) if n > 1 else Node(n)
print(sum(tree(12).walk()))
def risky(i):
    try:
        if i % 3 == 0: raise ValueError(i)
        if i % 5 == 0: return {}['x']
        return 10 // (i % 7)
    except (ValueError, KeyError) as e: return repr(e)
    except ZeroDivisionError: return 'zero'
    finally: pass
print([risky(i) for i in range(60)])
print(re.sub(r'(\w+) (?P<b>\d+|[a-c]*?x)(?=!)', r'\g<b>-\1', 'foo 12! bar abx! q 7') , re.findall(r'(?i)(a|b)+?c{1,3}', 'AbcC abccc bac'))
print(json.dumps({str(i): [i / 7, None, True, 'é\n' * i] for i in range(20)}, sort_keys=True))
print(json.loads('{"a": [1, 2.5e3, "\\u00e9"]}'))
print(sorted(random.sample(range(1000), 50), key=lambda x: (x % 7, -x)))
print(math.factorial(200) % (10**40 + 7), pow(3, 10**30, 10**25 + 13), 2.0**0.5, int('9' * 300) // 7)
print(collections.Counter('the quick brown fox jumps over the lazy dog').most_common(5))
print(textwrap.fill('lorem ipsum dolor ' * 20, 40))
print(f'{math.pi:.5f} {255:#x} {12345678:,} {"x":>10}|', 'ÄÖ ß'.upper().casefold().encode('utf-16').hex())
print(decimal.Decimal(2).sqrt(), datetime.date(2024, 2, 29) + datetime.timedelta(days=366))
print(list(itertools.islice(itertools.permutations('abcd'), 10)), functools.reduce(lambda a, b: a * b, range(1, 30)))
print(eval(compile('[x ** 2 for x in range(10) if x & 1]', 'f', 'eval')), '%r %s %08.3f' % ({1, 2}, b'x', 3.14159))
async def co(n): return n if n < 2 else await co(n - 1) + await co(n - 2)
def drive(c):
    try: c.send(None)
    except StopIteration as s: return s.value
print(drive(co(15)))
match [1, {'k': (2, 3)}]:
    case [a, {'k': (b, *c)}]: print(a, b, c)
exec('\n'.join(f'def f{i}(a, *b, c={i}, **d): return (a, b, c, d)' for i in range(30)))
print(f7(1, 2, c=3, z=4), f29(0))
print(sum(hash(i) for i in range(1000)), len(set(map(str, range(5000)))), bytes(range(256)).translate(bytes(range(255, -1, -1)))[:9])
)";

void python(void* library) {
  ::setenv("PYTHONHASHSEED", "0", 1);
  symbol<void(int)>(library, "Py_InitializeEx")(0);
  std::printf("%d\n", symbol<int(const char*)>(library, "PyRun_SimpleString")(kScript));
  symbol<int()>(library, "Py_FinalizeEx")();
}

// Unwinding through the library's own frames and landing pads, and what its tables and facets compute.
template <class Action>
void expect_throw(const char* what, const Action& action) {
  try {
    action();
    std::printf("%s: nothing thrown\n", what);
  } catch (const std::exception& e) {
    std::printf("%s: %s\n", what, e.what());
  }
}

void standard_library(void*) {
  for (int i = 0; i < 200; ++i) {
    expect_throw("at", [] { return std::string("abc").at(7); });
    expect_throw("locale", [] { std::locale("no such locale"); });
    expect_throw("file_size", [] { return std::filesystem::file_size("/no/such/file"); });
    expect_throw("stream", [] {
      std::ifstream in;
      in.exceptions(std::ios::failbit);
      in.open("/no/such/file");
    });
    expect_throw("parse", [] {
      std::istringstream in("not a number");
      in.exceptions(std::ios::failbit);
      int value = 0;
      in >> value;
    });
    expect_throw("iterate", [] { std::filesystem::directory_iterator("/no/such/directory"); });
    std::ostringstream out;
    out << i << ' ' << std::hex << i * 977 << ' ' << 1.0 / (i + 1) << ' ' << std::setprecision(12) << std::scientific
        << i * 3.7 << ' ' << std::setw(12) << std::setfill('*') << std::boolalpha << (i % 3 == 0) << '\n';
    std::istringstream in("12 0x7f 3.25e2 word");
    int a = 0, b = 0;
    double c = 0;
    std::string d;
    in >> a >> std::hex >> b >> std::dec >> c >> d;
    out << a << b << c << d << std::put_time(std::gmtime(std::array<std::time_t, 1>{i * 86'400'000l}.data()), "%c")
        << '\n';
    out << std::filesystem::path("/a/./b/../c").lexically_normal()
        << std::filesystem::weakly_canonical("/usr/./bin/..");
    std::printf("%s\n", out.str().c_str());
  }
}

int compare_longs(const void* a, const void* b) {
  const long x = *static_cast<const long*>(a), y = *static_cast<const long*>(b);
  return x < y ? -1 : x > y;
}

// Hand-written string functions with their tables of entries, formatting, big numbers, allocation.
void c_library(void*) {
  char text[4096], other[4096];
  for (int size = 0; size < 1500; size += 1 + size / 40) {
    for (int i = 0; i < size; ++i) text[i] = static_cast<char>('a' + (i * 7 + size) % 26);
    text[size] = '\0';
    std::memcpy(other, text, static_cast<std::size_t>(size) + 1);
    std::memmove(other + 3, other, static_cast<std::size_t>(size) + 1);
    std::memset(other, size, 3);
    char* const copy = ::strdup(text);
    std::printf("%d %zu %d %d %d %td %td %s\n", size, std::strlen(text), std::strcmp(text, copy) != 0,
                ::strcasecmp(text, other) > 0, ::strncmp(text, other + 3, 100) != 0,
                std::strchr(text, 'z') != nullptr ? std::strchr(text, 'z') - text : -1,
                std::strstr(text, "hov") != nullptr ? std::strstr(text, "hov") - text : -1, other + 3 + size / 2);
    ::free(copy);
  }
  for (int i = 1; i < 300; ++i) {
    std::printf("%+08.3f %g %a %5d %#llx %-10s| %Lf\n", i / 7.0, 1e300 / i, 1.0 / i, i, 1ull << (i % 64), "x",
                1.0L / i);
    std::snprintf(text, sizeof text, "%d.%de%d", i, i * 7919, i % 60 - 30);
    std::printf("%.17g %ld\n", std::strtod(text, nullptr), std::strtol(text, nullptr, 16));
  }
  long values[500];
  for (int i = 0; i < 500; ++i) values[i] = i * 7919l % 1009;
  std::qsort(values, 500, sizeof values[0], compare_longs);
  regex_t pattern;
  ::regcomp(&pattern, "(a|b)*c([0-9]{2,3})", REG_EXTENDED);
  regmatch_t match[3];
  std::printf("%ld %d %d\n", values[250], ::regexec(&pattern, "xxabac1234", 3, match, 0),
              static_cast<int>(match[2].rm_so));
  ::regfree(&pattern);
}

}  // namespace

TEST_CASE("string and number functions with jumps all over libc compute the same") {
  compare("libc.so.6", c_library, 8);
  compare("libc.so.6", c_library, 1);
}

TEST_CASE("exceptions and streams with jumps all over libstdc++ do the same") {
  compare("libstdc++.so.6", standard_library, 8);
  compare("libstdc++.so.6", standard_library, 1);
}

TEST_CASE("cryptography with jumps all over libcrypto computes the same") {
  compare("libcrypto.so.3", cryptography, 8);
  compare("libcrypto.so.3", cryptography, 1);
}

TEST_CASE("an interpreter with jumps all over libpython computes the same") {
  compare("libpython3.11.so.1.0", python, 8);
  compare("libpython3.11.so.1.0", python, 1);
}
