// The functions of an ELF file, as the daemon knows them: sized symbols, and where there are none the ranges of the
// unwind table, which stripped files still have. One thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arch/exits.hpp"
#include "arch/region.hpp"
#include "daemon/symbols/elf.hpp"
#include "proto/base/result.hpp"

namespace probed::coverage {

struct Function {
  std::uint64_t address = 0;  // as the file's headers give it
  std::string name;           // empty: only the unwind table knows it
  std::vector<std::uint8_t> bytes;
  arch::ExitPlan exits;
};

struct File {
  std::string path;
  std::vector<Function> functions;             // ascending, without overlaps: every byte of code is looked at once
  std::uint64_t named = 0;                     // how many of them have a symbol
  std::shared_ptr<const arch::CodeFlow> flow;  // never null
  std::chrono::nanoseconds flow_time{};        // that its analysis took
  std::uint64_t function_bytes = 0, executable_bytes = 0;  // of the functions; of all executable segments
};

// Errors: what opening and reading the file says.
Result<File> read_file_functions(const std::string& path);

}  // namespace probed::coverage
