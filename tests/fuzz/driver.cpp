// Stands in for libFuzzer with g++: replays a corpus, then mutates its inputs for a while. Any LLVMFuzzerTestOneInput
// can be linked with it.
//
//   NAME-fuzz [--seconds N] [--seed S] [FILE-OR-DIRECTORY]...
//
// The same seed, corpus and number of runs give the same inputs. The input being run is kept in memory; when it aborts,
// it is written to ./crash-input (and with it the seed and run to stderr) so that it can be replayed as a FILE.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t kMaxInput = 32 << 10;
const Input* g_current = nullptr;

// Async-signal-safe: open, write, close only.
void keep_input(int signal) {
  if (g_current != nullptr) {
    const int fd = ::open("crash-input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd >= 0) {
      if (::write(fd, g_current->data(), g_current->size()) < 0) ::write(2, "cannot write crash-input\n", 25);
      ::close(fd);
    }
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const Input& input) {
  g_current = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
  g_current = nullptr;
}

void load(const std::filesystem::path& path, std::vector<Input>& corpus) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) {
      std::fprintf(stderr, "cannot read %s\n", file.c_str());
      std::exit(2);
    }
    corpus.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
}

class Mutator {
 public:
  Mutator(std::uint64_t seed, const std::vector<Input>& corpus) : random_(seed), corpus_(corpus) {}

  Input next() {
    Input input = corpus_[pick(corpus_.size())];
    for (std::size_t n = 1 + pick(6); n > 0; --n) mutate(input);
    input.resize(std::min(input.size(), kMaxInput));
    return input;
  }

 private:
  // Bytes with a meaning in the languages under test, besides all others.
  static constexpr std::string_view kLikely = "%$@+-()[]<>{}:=.,/\\\"'!&|~*?# \t\n0123456789abcdefprsuxN_";

  std::size_t pick(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random_() % n); }
  std::uint8_t byte() {
    return pick(4) == 0 ? static_cast<std::uint8_t>(random_())
                        : static_cast<std::uint8_t>(kLikely[pick(kLikely.size())]);
  }

  void mutate(Input& input) {
    const std::size_t at = pick(input.size() + 1);
    const std::size_t length = std::min(input.size() - at, 1 + pick(pick(8) == 0 ? 200 : 8));
    const auto from = input.begin() + static_cast<std::ptrdiff_t>(at);
    const Input piece(from, from + static_cast<std::ptrdiff_t>(length));
    switch (pick(8)) {
      case 0: input.insert(from, byte()); break;
      case 1: input.erase(from, from + static_cast<std::ptrdiff_t>(length)); break;
      case 2:
        if (at < input.size()) input[at] = byte();
        break;
      case 3: insert(input, piece, 1 + pick(20)); break;
      case 4: splice(input, at); break;
      case 5: overwrite(input, at); break;
      default:
        if (at < input.size()) input[at] = static_cast<std::uint8_t>(input[at] ^ 1u << pick(8));
    }
  }

  void insert(Input& input, const Input& piece, std::size_t times) {
    for (; times > 0 && input.size() < kMaxInput; --times) {
      const auto at = input.begin() + static_cast<std::ptrdiff_t>(pick(input.size() + 1));
      input.insert(at, piece.begin(), piece.end());
    }
  }

  // A number of 1 to 8 bytes, where binary formats have theirs.
  void overwrite(Input& input, std::size_t at) {
    static constexpr std::uint64_t kExtremes[] = {0,           1,           0x7f,        0x80,       0xff,
                                                  0x7fff'ffff, 0x8000'0000, 0xffff'ffff, 1ull << 40, ~0ull >> 1,
                                                  1ull << 63,  ~0ull - 7,   ~0ull};
    const std::size_t size = std::size_t{1} << pick(4);
    const std::uint64_t value = kExtremes[pick(std::size(kExtremes))];
    at = at / size * size;
    if (at + size <= input.size()) std::memcpy(input.data() + at, &value, size);
  }

  void splice(Input& input, std::size_t at) {
    const Input& other = corpus_[pick(corpus_.size())];
    const std::size_t start = pick(other.size());
    const std::size_t length = pick(other.size() - start + 1);
    const auto from = other.begin() + static_cast<std::ptrdiff_t>(start);
    input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), from, from + static_cast<std::ptrdiff_t>(length));
  }

  std::mt19937_64 random_;
  const std::vector<Input>& corpus_;
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 0;
  std::uint64_t seed = 1;
  std::vector<Input> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--seconds" && i + 1 < argc)
      seconds = std::atof(argv[++i]);
    else if (argument == "--seed" && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 0);
    else
      load(argument, corpus);
  }
  if (corpus.empty()) corpus.emplace_back();
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, keep_input);
  for (const Input& input : corpus) run(input);

  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  Mutator mutator(seed, corpus);
  std::uint64_t runs = 0;
  while (std::chrono::steady_clock::now() < end) {
    for (int batch = 0; batch < 64; ++batch, ++runs) run(mutator.next());
  }
  std::printf("%zu corpus inputs, %llu mutated ones, seed %llu\n", corpus.size(), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
  return 0;
}
