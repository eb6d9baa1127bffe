#include "daemon/control/controller_impl.hpp"

#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/control/parts.hpp"

namespace probed::control {

static symbols::ModuleCache::Options module_options(symbols::Debuginfod& servers) {
  symbols::ModuleCache::Options options;
  if (symbols::Debuginfod::available())
    options.fetch = [&servers](std::span<const std::byte> build_id) { return servers.fetch(build_id); };
  return options;
}

Parts::Parts(boost::asio::io_context& on, std::size_t queue_bytes)
    : io(on),
      modules(module_options(debuginfod)),
      stream(*this, queue_bytes),
      tracer(std::make_unique<tracer::Tracer>(stream.sink(), listener)) {}

ControllerImpl::ControllerImpl(boost::asio::io_context& io, std::size_t queue_bytes, std::string state_directory)
    : parts_(std::make_unique<Parts>(io, queue_bytes)) {
  parts_->tracer->post(
      [directory = std::move(state_directory)](tracer::Engine& engine) { engine.set_state_directory(directory); });
  parts_->stream.poll_hits();
}

ControllerImpl::~ControllerImpl() {
  parts_->debuginfod.stop();
  parts_->workers.stop(std::chrono::hours(1));
  parts_->tracer.reset();
}

void ControllerImpl::set_max_rate(std::uint64_t most) { parts_->registry.max_rate = most; }
void ControllerImpl::set_probe_limits(const ProbeLimits& limits) { parts_->registry.probe_limits = limits; }
void ControllerImpl::set_owner_judge(std::function<Result<void>(Owner, pid_t)> judge) {
  parts_->registry.owner_may_trace = std::move(judge);
}
std::size_t ControllerImpl::finish_work(std::chrono::milliseconds patience) { return parts_->workers.stop(patience); }

void ControllerImpl::shut_down(std::chrono::milliseconds limit, std::function<void()> done) {
  parts_->debuginfod.stop();
  parts_->tracer->urgency().hurry_others(kForLettingGo);
  auto once = std::make_shared<std::function<void()>>(std::move(done));
  const auto finish = [this, once] {
    if (!*once) return;
    parts_->stream.drain_all();
    parts_->keeper.end();
    std::exchange(*once, nullptr)();
  };
  parts_->shutdown_timer = std::make_unique<boost::asio::steady_timer>(parts_->io, limit);
  parts_->shutdown_timer->async_wait([finish](const boost::system::error_code& error) {
    if (error) return;
    spdlog::error("some threads could not be stopped in time: their text is restored, they are left to the kernel");
    finish();
  });
  parts_->tracer->post([this, finish](tracer::Engine& engine) {
    engine.detach_all([this, finish] {
      parts_->post([this, finish] {
        parts_->shutdown_timer->cancel();
        finish();
      });
    });
  });
}

void ControllerImpl::client_connected(Client& client) { parts_->registry.clients.emplace(client.id(), &client); }

void ControllerImpl::client_gone(ClientId client) {
  parts_->registry.clients.erase(client);
  std::vector<std::uint64_t> dead;
  for (const auto& [id, subscription] : parts_->registry.subscriptions)
    if (subscription.client->id() == client) dead.push_back(id);
  for (const std::uint64_t id : dead) {
    parts_->stream.unlink(parts_->registry.subscriptions.at(id));
    parts_->registry.subscriptions.erase(id);
  }
  if (parts_->shutdown_timer) return;  // everything goes
  std::vector<pid_t> left;
  for (auto& [pid, target] : parts_->registry.targets) {
    target.interested.erase(client);
    if (target.holder == client || target.holds_execs == client) parts_->attachments.forget_hold(target);
    if (target.attached_for.erase(client) > 0 && !target.stays()) left.push_back(pid);
  }
  std::vector<ProbeId> ids;
  for (const auto& [id, probe] : parts_->registry.probes)
    if (probe.owner == client) ids.push_back(id);
  if (!ids.empty()) parts_->changes.remove_ids(std::move(ids), [](auto) {});
  for (const pid_t pid : left) parts_->attachments.detach_if_unused(pid, [] {});
}

// ---- requests -------------------------------------------------------------------------------------------------------

void ControllerImpl::keep_probes(Keeping keeping) { parts_->keeper.keep_probes(std::move(keeping)); }
void ControllerImpl::readopt(std::chrono::milliseconds limit, std::function<void()> done) {
  parts_->keeper.readopt(limit, std::move(done));
}
void ControllerImpl::attach(Client& client, pid_t pid, AttachOptions options, Reply<TargetView> reply) {
  parts_->attachments.attach(client, pid, std::move(options), std::move(reply));
}
void ControllerImpl::detach(pid_t pid, Reply<void> reply) { parts_->attachments.detach(pid, std::move(reply)); }
void ControllerImpl::resume(pid_t pid, Reply<void> reply) { parts_->attachments.resume(pid, std::move(reply)); }
std::vector<TargetView> ControllerImpl::targets() const { return parts_->attachments.targets(); }
void ControllerImpl::add(Client& client, AddRequest request, Reply<Added> reply) {
  parts_->placement.add(client, std::move(request), std::move(reply));
}
void ControllerImpl::remove(Client& client, Selector which, Reply<std::vector<ProbeView>> reply) {
  parts_->changes.remove(client, std::move(which), std::move(reply));
}
void ControllerImpl::set_enabled(Client& client, Selector which, bool enabled, Reply<Changed> reply) {
  parts_->changes.set_enabled(client, std::move(which), enabled, std::move(reply));
}
void ControllerImpl::look(std::optional<pid_t> pid, std::function<void()> done) {
  parts_->reviver.look(pid, std::move(done));
}
std::vector<ProbeView> ControllerImpl::probes(std::optional<pid_t> pid) const { return parts_->views.probes(pid); }
Result<Subscribed> ControllerImpl::subscribe(Client& client, SubscribeRequest request) {
  return parts_->stream.subscribe(client, std::move(request));
}
Result<SubscriptionTotals> ControllerImpl::unsubscribe(Client& client, std::uint64_t subscription) {
  return parts_->stream.unsubscribe(client, subscription);
}
void ControllerImpl::set_armed(Client& client, bool armed, Reply<std::vector<Failed>> reply) {
  parts_->changes.set_armed(client, armed, std::move(reply));
}
void ControllerImpl::set_optimize(bool enabled, Reply<void> reply) {
  parts_->changes.set_optimize(enabled, std::move(reply));
}
Status ControllerImpl::status() const { return parts_->views.status(); }
void ControllerImpl::functions(Client& client, pid_t pid, std::string pattern, std::size_t limit,
                               Shape<symbols::Function> shape, Reply<std::string> reply) {
  parts_->lookups.functions(client, pid, std::move(pattern), limit, std::move(shape), std::move(reply));
}
void ControllerImpl::variables(Client& client, pid_t pid, std::string location, Shape<dwarf::VisibleVariable> shape,
                               Reply<std::string> reply) {
  parts_->lookups.variables(client, pid, std::move(location), std::move(shape), std::move(reply));
}
void ControllerImpl::lines(Client& client, pid_t pid, std::string file, std::size_t limit,
                           Shape<symbols::SourceLine> shape, Reply<std::string> reply) {
  parts_->lookups.lines(client, pid, std::move(file), limit, std::move(shape), std::move(reply));
}
void ControllerImpl::usdt(Client& client, pid_t pid, std::string pattern, std::size_t limit,
                          Shape<symbols::UsdtProbe> shape, Reply<std::string> reply) {
  parts_->lookups.usdt(client, pid, std::move(pattern), limit, std::move(shape), std::move(reply));
}

}  // namespace probed::control
