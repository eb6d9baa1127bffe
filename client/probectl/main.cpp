// probectl: wiring only.
#include <cstdio>

#include "client/probectl/commands.hpp"
#include "client/probectl/options.hpp"
#include "proto/base/fd.hpp"

int main(int argc, char** argv) {
  probed::fill_standard_descriptors();
  const auto parsed = probed::client::parse_options({argv + 1, argv + argc});
  if (const auto* exit = std::get_if<probed::client::Exit>(&parsed)) {
    std::fputs(exit->out.c_str(), stdout);
    std::fputs(exit->err.c_str(), stderr);
    if (std::fflush(stdout) == 0) return exit->status;
    std::perror("probectl: writing failed");
    return 1;
  }
  return probed::client::run_command(*std::get_if<probed::client::Options>(&parsed));
}
