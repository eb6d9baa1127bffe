// What the symbol tests share: locations without a parser, fixture programs that run while a test looks at them.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/symbols/module_cache.hpp"
#include "daemon/symbols/resolve.hpp"
#include "proto/base/fd.hpp"

namespace probed::symbols::test {

inline std::string fixtures() {
  const char* folder = std::getenv("PROBED_FIXTURES");
  return folder ? folder : ".";
}

inline lang::Location symbol(std::string name, std::uint64_t offset = 0, std::string module = "") {
  lang::Location location;
  location.text = (module.empty() ? "" : module + ":") + name;
  location.module = std::move(module);
  location.where = lang::SymbolLocation{std::move(name), offset};
  return location;
}

inline lang::Location file_offset(std::string module, std::uint64_t offset) {
  lang::Location location;
  location.module = std::move(module);
  location.where = lang::FileOffsetLocation{offset};
  return location;
}

inline lang::Location address(std::uint64_t value) {
  lang::Location location;
  location.where = lang::AddressLocation{value};
  return location;
}

// A program that runs, has said "ready", and ends with this object.
class Running {
 public:
  explicit Running(const std::string& path) {
    int in[2], out[2];
    REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execl(path.c_str(), path.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    stdin_.reset(in[1]);
    read_facts(UniqueFd(out[0]));
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    stdin_.reset();
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  bool ready() const { return ready_; }
  // The address the program itself gives for one of its functions.
  RemoteAddr fact(const std::string& name) const {
    const auto it = facts_.find(name);
    return it != facts_.end() ? it->second : RemoteAddr{};
  }

 private:
  void read_facts(UniqueFd fd) {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(::fdopen(fd.release(), "r"), std::fclose);
    char line[256];
    while (!ready_ && std::fgets(line, sizeof line, file.get())) {
      std::string text(line);
      text.resize(text.find_last_not_of('\n') + 1);
      ready_ = text == "ready";
      if (const std::size_t eq = text.find('='); eq != std::string::npos)
        facts_[text.substr(0, eq)] = {std::strtoull(text.c_str() + eq + 1, nullptr, 16)};
    }
  }

  pid_t pid_ = -1;
  UniqueFd stdin_;
  bool ready_ = false;
  std::map<std::string, RemoteAddr> facts_;
};

// Fails the test with the error's text instead of crashing.
template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) FAIL(result.error().message << " (" << result.error().hint << ")");
  return std::move(result).value();
}

inline std::shared_ptr<const TargetSymbols> load(pid_t pid, ModuleCache& cache) {
  return value_of(TargetSymbols::load(pid, cache));
}

inline Site only_site(const TargetSymbols& symbols, const lang::Location& location) {
  std::vector<Site> sites = value_of(symbols.resolve(location));
  REQUIRE(sites.size() == 1);
  return sites[0];
}

inline Error refusal(const TargetSymbols& symbols, const lang::Location& location) {
  Result<std::vector<Site>> result = symbols.resolve(location);
  REQUIRE_FALSE(result.ok());
  return result.error();
}

inline bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// The output of a shell command.
inline std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  char chunk[4096];
  while (const std::size_t n = std::fread(chunk, 1, sizeof chunk, pipe.get())) text.append(chunk, n);
  return text;
}

}  // namespace probed::symbols::test
