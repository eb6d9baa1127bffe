// Gathers from one ELF file what arch::analyse_code() needs: text, data, function bounds, and every place that is
// entered in a way which the code itself doesn't show (symbols, landing pads of exceptions, what relocations point to).
// Any thread; reads the file. The input is hostile.
#pragma once

#include <memory>

#include "arch/region.hpp"
#include "daemon/symbols/elf.hpp"

namespace probed::symbols {

// `module`: loaded, of the same file as `image`. Null when the text can't be read or is larger than 256 MiB. Takes
// milliseconds for each MiB of text: once for each file, not on the tracer's thread.
std::shared_ptr<const arch::CodeFlow> read_code_flow(const Module& module, const elf::Image& image);

}  // namespace probed::symbols
