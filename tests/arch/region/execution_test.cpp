// Real libraries with tens of thousands of their instructions replaced by jumps compute what they compute without.
//
// Each run is a child process of its own that loads a copy of the library, patches it or not, and prints what a
// workload computed; the two outputs must be equal. A jump that overwrote something that is led to shows as a crash or
// as another output.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
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

constexpr unsigned kMostSites = 60'000;
const unsigned kSeeds =
    std::getenv("REGION_SEEDS") != nullptr ? static_cast<unsigned>(std::atoi(std::getenv("REGION_SEEDS"))) : 2;

void patch(void* library, const std::string& path, const Patching& patching) {
  link_map* map = nullptr;
  ::dlinfo(library, RTLD_DI_LINKMAP, &map);
  // Never destroyed: the library's own destructors run through the detours, too.
  static Patcher& patcher = *new Patcher(path, map->l_addr);
  const PatchCounts counts = patcher.patch(patching.seed, patching.every, kMostSites);
  std::fprintf(stderr, "%s: %u near, %u island, %u hosted, %u refused\n", path.c_str(), counts.near, counts.island,
               counts.hosted, counts.refused);
  std::atexit([] {
    const std::uint64_t hits = patcher.hits();
    std::fprintf(stderr, "  %llu hits\n", static_cast<unsigned long long>(hits));
    if (hits == 0) ::_exit(77);
  });
}

[[noreturn]] void child(int out, const std::string& path, Workload workload, const Patching& patching) {
  ::dup2(out, STDOUT_FILENO);
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

void compare(const char* name, Workload workload, unsigned every) {
  const std::string path = path_of(name);
  if (path.empty()) {
    MESSAGE("skipped: " << name << " is not installed");
    return;
  }
  const Run plain = run(path, workload, {});
  REQUIRE(plain.status == 0);
  REQUIRE(plain.output.size() > 100);
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    const Run patched = run(path, workload, {seed, every});
    CAPTURE(seed);
    CHECK(patched.status == 0);
    CHECK(patched.output == plain.output);
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

}  // namespace

TEST_CASE("cryptography with jumps all over libcrypto computes the same") {
  compare("libcrypto.so.3", cryptography, 8);
  compare("libcrypto.so.3", cryptography, 1);
}

TEST_CASE("an interpreter with jumps all over libpython computes the same") {
  compare("libpython3.11.so.1.0", python, 8);
  compare("libpython3.11.so.1.0", python, 1);
}
