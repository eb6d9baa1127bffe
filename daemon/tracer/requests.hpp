// What the rest of the daemon asks of the tracer, and its answers: values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "arch/arch.hpp"
#include "daemon/base/types.hpp"
#include "daemon/tracer/program.hpp"
#include "daemon/tracer/text/text_overlay.hpp"
#include "proto/base/result.hpp"

namespace probed::tracer {

struct AttachParams {
  bool follow_fork = false;
  bool keep_after_exec = false;
  bool hold_at_entry = false;
  bool hold_at_execs = false;  // likewise at each exec, of the children it is followed into, too
};

struct AttachResult {
  TargetId id;
  std::uint32_t threads = 0;
  std::uint32_t execs = 0;                     // tells this program of the process from the next one
  std::shared_ptr<const TextOverlay> overlay;  // what its text may hold of ours
};

// What is known of the code around a site.
struct SiteCode {
  RemoteAddr site;
  std::shared_ptr<const arch::CodeFlow> flow;  // null: nothing
  std::uint64_t bias = 0;
  const char* why_not = nullptr;  // set: it isn't optimised, and why; of static life time
  bool in_frame = false;          // an unwind table covers it: it is native code
};

struct SiteRequest {
  SitePlan plan;
  ProgramPtr program;
  std::optional<SiteCode> code;  // nullopt: it isn't known yet, know_code() will tell
};

// A probe that couldn't be armed again: the program has changed its memory meanwhile.
struct NotArmed {
  ProbeId id{};
  Error why;
};

using Done = std::function<void(Result<void>)>;

}  // namespace probed::tracer
