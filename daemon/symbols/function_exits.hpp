// Where a function of an ELF file is left: arch::native::plan_exits() with what the symbols know. Any thread.
#pragma once

#include "arch/exits.hpp"
#include "daemon/symbols/elf.hpp"

namespace probed::symbols {

// `module`: loaded; `flow`: of the same file. entry: the function's first instruction.
arch::ExitPlan function_exits(const Module& module, const arch::CodeFlow& flow, ElfAddr entry);

}  // namespace probed::symbols
