#include "daemon/control/tracer_listener.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/control/parts.hpp"

namespace probed::control {

constexpr auto kForNames = std::chrono::milliseconds(20);  // to enter who records

void TracerListener::process_gone(pid_t root, pid_t pid, std::optional<tracer::WaitStatus> how) {
  parts_.post([&p = parts_, root, pid, how] { p.attachments.on_process_gone(root, pid, how); });
}

void TracerListener::process_execed(pid_t root, pid_t pid, bool kept, std::string comm) {
  parts_.post([&p = parts_, root, pid, kept, comm = std::move(comm)] {
    p.attachments.on_process_execed(root, pid, kept, comm);
  });
}

void TracerListener::process_ready(pid_t pid) {
  parts_.post([&p = parts_, pid] { p.attachments.on_process_ready(pid); });
}

void TracerListener::process_forked(pid_t root, pid_t child) {
  parts_.post([&p = parts_, root, child] {
    const auto it = p.registry.targets.find(root);
    if (it == p.registry.targets.end()) return;
    it->second.members.insert(child);
    p.attachments.notify_interested(it->second, "target.forked",
                                    fmt::format(R"({{"pid":{},"child":{}}})", root, child));
  });
}

void TracerListener::child_let_go(pid_t root) {
  parts_.post([&p = parts_, root] {
    if (const auto it = p.registry.targets.find(root); it != p.registry.targets.end()) ++it->second.children_let_go;
  });
}

void TracerListener::limit_reached(std::vector<ProbeId> probes) {
  parts_.post([&p = parts_, probes = std::move(probes)] { p.limits.on_limit_reached(probes); });
}

void TracerListener::taps_added(events::FeedPtr feed, std::vector<Tap> taps, pid_t pid, std::uint64_t ticket) {
  // Jumps wait for the answer; until then each hit is a stop.
  parts_.tracer->urgency().hurry_others(kForNames);
  parts_.post([&p = parts_, feed = std::move(feed), taps = std::move(taps), pid, ticket] {
    p.stream.on_taps_added(feed, taps, pid, ticket);
  });
}

void TracerListener::taps_unused(events::FeedPtr feed, std::vector<std::uint32_t> indices, pid_t pid) {
  parts_.post([&p = parts_, feed = std::move(feed), indices = std::move(indices), pid] {
    p.stream.on_taps_unused(feed, indices, pid);
  });
}

void TracerListener::feed_closed(events::FeedPtr feed) {
  parts_.post([&p = parts_, feed = std::move(feed)] { p.stream.on_feed_closed(feed); });
}

void TracerListener::longest_pause(pid_t root, std::uint64_t nanoseconds) {
  parts_.post([&p = parts_, root, nanoseconds] {
    p.registry.longest_pause = std::max(p.registry.longest_pause, nanoseconds);
    if (const auto it = p.registry.targets.find(root); it != p.registry.targets.end())
      it->second.longest_pause = std::max(it->second.longest_pause, nanoseconds);
  });
}

void TracerListener::code_gone(pid_t root, std::vector<ProbeId> probes, const char* why) {
  parts_.post([&p = parts_, root, probes = std::move(probes), why] { p.reviver.on_code_gone(root, probes, why); });
}

void TracerListener::libraries_changed(pid_t root, std::uint64_t ticket) {
  parts_.post([&p = parts_, root, ticket] { p.reviver.on_libraries_changed(root, ticket); });
}

}  // namespace probed::control
