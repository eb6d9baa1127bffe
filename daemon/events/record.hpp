// One hit as it travels from the tracer to the sessions: a header and the packed argument values.
//
// Their layout is in values/packed.hpp.
#pragma once

#include <cstdint>

#include "daemon/base/types.hpp"

namespace probed::events {

inline constexpr std::size_t kMaxString = 512;          // bytes of a string argument that are kept
inline constexpr std::size_t kMaxArgumentBytes = 8192;  // of one event; arguments that don't fit become null

struct RecordHeader {
  std::uint32_t size = 0;  // bytes of the whole record, header included
  ProbeId probe{};
  std::int32_t pid = 0;
  std::int32_t tid = 0;
  std::uint32_t cpu = 0;
  std::uint32_t tail_call = 0;  // of a return: 1 when the function was left by one
  std::uint64_t time = 0;       // CLOCK_MONOTONIC, ns
  std::uint64_t ip = 0;
  char comm[16] = {};  // NUL-terminated, as the kernel keeps it
  // Of a return only.
  std::uint64_t ret_ip = 0;
  std::uint64_t duration = 0;  // ns
};
static_assert(sizeof(RecordHeader) == 72);

}  // namespace probed::events
