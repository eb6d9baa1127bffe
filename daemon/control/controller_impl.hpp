// The Controller over a real tracer: what clients ask for, done by its parts (parts.hpp). Asio thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "daemon/control/controller.hpp"
#include "daemon/control/kept.hpp"

namespace probed::control {

struct Parts;

class ControllerImpl final : public Controller {
 public:
  // queue_bytes: room for hits on their way from the tracer, a power of two.
  // state_directory: for the tracer's journals; empty: none are kept.
  ControllerImpl(boost::asio::io_context& io, std::size_t queue_bytes, std::string state_directory = {});
  ~ControllerImpl() override;

  // The hits a second of a probe without a rate of its own, as long as it is a breakpoint; 0: any number.
  void set_max_rate(std::uint64_t most);
  void set_probe_limits(const ProbeLimits& limits);

  // Whether the owner of what persists may still trace that process. Without it everybody may.
  void set_owner_judge(std::function<Result<void>(Owner, pid_t)> judge);
  // Persistent probes, and targets that stay attached for good, are kept in files of this directory from now on.
  void keep_probes(Keeping keeping);
  // Puts back what the daemon before has kept there: every probe is registered when this returns, those that can be are
  // in place when done is called, `limit` later at most.
  void readopt(std::chrono::milliseconds limit, std::function<void()> done);

  // Detaches everything, delivers what was hit until then, and calls done; at most `limit` later it is called anyway.
  // From here on clients may only go (client_gone()). Never calls done itself.
  void shut_down(std::chrono::milliseconds limit, std::function<void()> done);
  // After that: gives the workers' jobs so long to end. How many don't: this must not be destroyed then.
  std::size_t finish_work(std::chrono::milliseconds patience);

  void client_connected(Client& client) override;
  void client_gone(ClientId client) override;
  void attach(Client& client, pid_t pid, AttachOptions options, Reply<TargetView> reply) override;
  void detach(pid_t pid, Reply<void> reply) override;
  void resume(pid_t pid, Reply<void> reply) override;
  std::vector<TargetView> targets() const override;
  void add(Client& client, AddRequest request, Reply<Added> reply) override;
  void remove(Client& client, Selector which, Reply<std::vector<ProbeView>> reply) override;
  void set_enabled(Client& client, Selector which, bool enabled, Reply<Changed> reply) override;
  void look(std::optional<pid_t> pid, std::function<void()> done) override;
  std::vector<ProbeView> probes(std::optional<pid_t> pid) const override;
  Result<Subscribed> subscribe(Client& client, SubscribeRequest request) override;
  Result<SubscriptionTotals> unsubscribe(Client& client, std::uint64_t subscription) override;
  void set_armed(Client& client, bool armed, Reply<std::vector<Failed>> reply) override;
  void set_optimize(bool enabled, Reply<void> reply) override;
  Status status() const override;
  void functions(Client& client, pid_t pid, std::string pattern, std::size_t limit, Shape<symbols::Function> shape,
                 Reply<std::string> reply) override;
  void variables(Client& client, pid_t pid, std::string location, Shape<dwarf::VisibleVariable> shape,
                 Reply<std::string> reply) override;
  void lines(Client& client, pid_t pid, std::string file, std::size_t limit, Shape<symbols::SourceLine> shape,
             Reply<std::string> reply) override;
  void usdt(Client& client, pid_t pid, std::string pattern, std::size_t limit, Shape<symbols::UsdtProbe> shape,
            Reply<std::string> reply) override;

 private:
  std::unique_ptr<Parts> parts_;
};

}  // namespace probed::control
