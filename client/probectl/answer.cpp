// See answer.hpp.
#include "client/probectl/answer.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <vector>

#include "client/display.hpp"
#include "client/probectl/report.hpp"
#include "proto/error.hpp"
#include "proto/json.hpp"

namespace probed::client {

std::string pid_params(const Options& options) {
  proto::JsonWriter json;
  json.begin_object();
  if (options.pid) json.key("pid").number(std::int64_t{*options.pid});
  return json.end_object().text();
}

void print_line(std::string_view line) {
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fputc('\n', stdout);
}

int finish_output(const Options& options) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  if (errno == EPIPE)
    return 128 + SIGPIPE;  // whoever reads has had enough; as a shell says where SIGPIPE isn't ignored
  return fail({Reason::internal, fmt::format("writing the answer failed: {}", text_of_errno(errno)), "", {}},
              options.json());
}

int fail_call(const Connection& connection, const Error& error, const Options& options) {
  return fail(error, options.json(), failure_word(&connection, error), {options.probes, options.filter});
}

std::string skipped_summary(JsonView skipped, bool verbose, std::uint64_t total) {
  struct Kind {
    std::uint64_t count = 0;
    std::string reason, first;
  };
  std::vector<Kind> kinds;  // in the order of their first
  std::uint64_t count = 0;
  skipped.each_element([&](JsonView item) {
    ++count;
    const auto reason = item["reason"].string();
    auto kind = std::ranges::find(kinds, reason, &Kind::reason);
    if (kind == kinds.end())
      kind = kinds.insert(
          kind,
          {0, reason, fmt::format("{}: {}", display(item["symbol"].string()), display(item["message"].string()))});
    ++kind->count;
    return true;
  });
  if (count == 0) return "";
  const Kind& most = *std::ranges::max_element(kinds, {}, &Kind::count);
  const auto share = kinds.size() == 1 ? "" : fmt::format(", {} of them as ", most.count);
  return fmt::format("{} skipped{}{}{}", std::max(count, total), share.empty() ? ": " : share, most.first,
                     verbose ? "" : "; --verbose lists all");
}

void report_skipped(JsonView skipped, bool json) {
  if (json) return void(std::fputs(fmt::format("{{\"skipped\":{}}}\n", skipped.text()).c_str(), stderr));
  skipped.each_element([](JsonView item) {
    note(fmt::format("skipped {} ({}): {}", display(item["symbol"].string()), display(item["address"].string()),
                     item["message"].string()));
    return true;
  });
}

std::string how_it_ended(JsonView params) { return how_it_ended(params["code"].u64(), params["signal"].u64()); }

std::string how_it_ended(std::optional<std::uint64_t> code, std::optional<std::uint64_t> signal) {
  if (signal) return fmt::format(" (killed by signal {})", *signal);
  return code ? fmt::format(" (exit code {})", *code) : "";
}

std::string how_they_went(JsonView params, bool waits) {
  const std::string what = display(params["what"].string()), why = display(params["message"].string());
  if (!why.empty()) return fmt::format("gone: {}: {}", what, why);
  return fmt::format("gone: {}: the code was unloaded, moved or rewritten; what has run there since isn't counted{}",
                     what, waits ? ", until it is back" : " (--pending waits for it)");
}

const char* how_it_was_switched(JsonView params) {
  return params["armed"].boolean_or(true)
             ? "the daemon is armed again"
             : "another client has disarmed the daemon: nothing is hit until `probectl arm`";
}

Error failed_error(JsonView failed) {
  return {reason_from_string(failed["reason"].string()).value_or(Reason::internal),
          fmt::format("{}: {}", failed["name"].string(), failed["message"].string()), failed["hint"].string()};
}

void note_of_probes(JsonView probes) {
  constexpr std::size_t kMostAlike = 3, kMost = 24;
  std::map<std::string, std::size_t> said;  // by text
  std::size_t shown = 0, left_out = 0;
  probes.each_element([&](JsonView probe) {
    probe["notes"].each_element([&](JsonView text) {
      if (shown == kMost || said[text.string()]++ >= kMostAlike) return ++left_out, true;
      note(fmt::format("{}: {}", display(probe["name"].string()), display(text.string())));
      return ++shown, true;
    });
    return true;
  });
  if (left_out > 0) note(fmt::format("... and {} more notes of this kind", left_out));
}

std::size_t report_failed(JsonView failed, bool json) {
  std::size_t count = 0;
  failed.each_element([&](JsonView item) {
    ++count;
    fail(failed_error(item), json);
    return true;
  });
  return count;
}

bool shows_disarmed(JsonView probes) {
  bool disarmed = false;
  probes.each_element([&](JsonView probe) {
    disarmed = probe["state"].raw_string() == "enabled" && !probe["armed"].boolean_or(true);
    return !disarmed;
  });
  return disarmed;
}

}  // namespace probed::client
