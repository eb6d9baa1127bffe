// See probing.hpp.
#include "tests/live/probing.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace probed::live {

Json add_params(pid_t pid, const std::vector<std::string>& definitions, const Json& more) {
  Json probes = Json::array();
  for (const std::string& definition : definitions) probes.push_back({{"definition", definition}});
  Json params{{"pid", pid}, {"probes", std::move(probes)}};
  params.update(more);
  return params;
}

std::vector<Json> add(RpcClient& client, pid_t pid, const std::vector<std::string>& definitions, const Json& more) {
  return client.call("probe.add", add_params(pid, definitions, more), Millis{30'000}).at("probes");
}

Json add_error(RpcClient& client, pid_t pid, const std::vector<std::string>& definitions, const Json& more) {
  return client.request("probe.add", add_params(pid, definitions, more)).value("error", Json());
}

std::string reason_of(const Json& error) {
  return error.is_object() ? error.value("data", Json::object()).value("reason", "") : "";
}
std::string hint_of(const Json& error) {
  return error.is_object() ? error.value("data", Json::object()).value("hint", "") : "";
}

Json ids_of(const std::vector<Json>& probes) {
  Json ids = Json::array();
  for (const Json& probe : probes) ids.push_back(probe.at("id"));
  return {{"ids", std::move(ids)}};
}

std::vector<Json> remove_all(RpcClient& client, const std::vector<Json>& probes) {
  return client.call("probe.remove", ids_of(probes), Millis{30'000}).at("probes");
}

std::vector<Json> list_probes(RpcClient& client, pid_t pid) {
  return client.call("probe.list", pid == 0 ? Json::object() : Json{{"pid", pid}}).at("probes");
}

Counts counts_of(RpcClient& client, const Json& probe) {
  const Json profile = client.call("probe.profile");
  for (const Json& row : profile.at("probes"))
    if (row.at("id") == probe.at("id")) return {row.at("hits"), row.at("missed"), row.at("filtered")};
  throw std::runtime_error("probe.profile has no row for " + probe.dump());
}

// ---- events ---------------------------------------------------------------------------------------------------------

Events::Events(RpcClient& client, const Json& params)
    : client_(client), id_(client.call("events.subscribe", params).at("subscription")) {}

void Events::take(const Json& notification) {
  const Json& params = notification.at("params");
  if (notification.at("method") != "events" || params.at("subscription") != id_) return others_.push_back(notification);
  missed_ += params.at("missed").get<std::uint64_t>();
  for (const Json& event : params.at("events")) events_.push_back(event);
}

bool Events::reach(std::size_t count, Millis limit) {
  const auto deadline = Clock::now() + scaled(limit);
  while (events_.size() < count && Clock::now() < deadline) {
    const auto message = client_.notification(Millis{100});
    if (message) take(*message);
  }
  return events_.size() >= count;
}

void Events::end() {
  const Json totals = client_.call("events.unsubscribe", {{"subscription", id_}}, Millis{30'000});
  delivered_ = totals.at("delivered");
  total_missed_ = totals.at("missed");
  while (const auto kept = client_.notification(Millis{0})) take(*kept);
}

std::vector<Json> Events::of(const Json& probe) const {
  std::vector<Json> out;
  for (const Json& event : events_)
    if (event.at("id") == probe.at("id")) out.push_back(event);
  return out;
}

// ---- text -----------------------------------------------------------------------------------------------------------

std::uint64_t address_of(const Json& probe) { return std::stoull(probe.at("address").get<std::string>(), nullptr, 16); }

std::string hex(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::vector<std::uint8_t> bytes_at(pid_t pid, std::uint64_t address, std::size_t size) {
  const UniqueFd fd(::open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<std::uint8_t> bytes(size);
  const ssize_t got = fd ? ::pread(fd.get(), bytes.data(), size, static_cast<off_t>(address)) : 0;
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

bool text_restored(pid_t pid) {
  return eventually([pid] { return text_differences(pid).empty(); });
}

bool has_breakpoint(pid_t pid, std::uint64_t address) { return begins_with_probe(bytes_at(pid, address, 4)); }

std::vector<std::string> new_executable_mappings(const TargetState& before, const TargetState& now) {
  std::vector<std::string> out;
  for (const std::string& mapping : now.executable_mappings)
    if (!before.executable_mappings.contains(mapping)) out.push_back(mapping);
  return out;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

bool Watched::runs_threads(std::size_t count) {
  const std::string tasks = "/proc/" + std::to_string(pid()) + "/task";
  const auto all_there = [&] {
    std::error_code gone;
    std::filesystem::directory_iterator begin(tasks, gone), end;
    return static_cast<std::size_t>(std::distance(begin, end)) == count;
  };
  // pthread_create() blocks every signal for a moment: the first thread must be beyond it, in its read(2).
  const std::string call = "/proc/" + std::to_string(pid()) + "/syscall";
  const bool came =
      eventually([&] { return all_there() && read_file(call).starts_with(std::to_string(SYS_read) + " "); });
  before = state_of(pid());
  return came;
}

std::string Watched::ask(const std::string& command) {
  target.send(command + "\n");
  return target.next_line().value_or("(no answer)");
}

pid_t only_child_of(pid_t pid) {
  pid_t child = 0;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children";
  eventually([&] { return static_cast<bool>(std::istringstream(read_file(tasks)) >> child); });
  return child;
}

}  // namespace probed::live
