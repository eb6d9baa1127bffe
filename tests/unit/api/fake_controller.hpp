// A controller without processes: remembers what it was asked, answers at once or when told to, and counts events the
// way the real one does.
//
// Thread: the test's Asio thread, except where a member says otherwise.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "daemon/control/controller.hpp"

namespace probed::test {

class FakeController final : public control::Controller {
 public:
  struct Subscription {
    control::Client* client = nullptr;
    control::SubscribeRequest request;
    std::uint64_t offered = 0, delivered = 0, missed = 0, unreported = 0;
  };

  // ---- what tests set and look at ----
  bool defer = false;  // answers wait in `deferred`
  std::deque<std::function<void()>> deferred;
  std::vector<std::string> calls;  // "attach 42", ...
  std::map<ClientId, control::Client*> clients;
  std::vector<ClientId> gone;
  std::map<std::uint64_t, Subscription> subscriptions;
  std::vector<control::TargetView> target_views;
  std::vector<control::ProbeView> probe_views;
  std::vector<control::Failed> failed;  // what set_enabled() and set_armed() answer
  std::vector<symbols::Function> function_views;
  std::vector<control::Skipped> skipped;  // what the next add says of its globs
  control::AddRequest last_add;
  control::AttachOptions last_attach;
  std::function<void(pid_t)> on_attach = [](pid_t) {};  // by attach or add
  bool events_inside_subscribe = false;
  mutable int lists = 0;  // calls of probes()

  // One event for a subscription, as the real controller delivers it.
  void emit(std::uint64_t id, std::string_view json) {
    Subscription& s = subscriptions.at(id);
    ++s.offered;
    if (s.client->offer_event(id, json)) {
      ++s.delivered;
      return;
    }
    ++s.missed;
    ++s.unreported;
  }
  void flush(std::uint64_t id) {
    Subscription& s = subscriptions.at(id);
    if (s.unreported > 0) s.client->report_missed(id, std::exchange(s.unreported, 0));
    s.client->flush_events();
  }
  void add_probe(std::uint32_t id, pid_t pid, std::string name) {
    control::ProbeView p;
    p.id = ProbeId{id};
    p.pid = pid;
    p.name = std::move(name);
    p.kind = "p";
    p.address = {0x55d0c8a4f2b0};
    p.symbol = "processCommand+0x0";
    p.module = "redis-server";
    p.state = "enabled";
    p.tier = "boosted";
    p.definition = "processCommand $arg1";
    p.args = {{"arg1", "x64"}};
    p.hits = 18446744073709551615u;
    probe_views.push_back(p);
  }
  void add_target(pid_t pid, std::string comm) {
    control::TargetView t;
    t.id = {pid, 123456789012345};
    t.comm = std::move(comm);
    t.exe = "/usr/bin/x";
    t.threads = 1;
    target_views.push_back(t);
  }
  void release_deferred() {
    while (!deferred.empty()) {
      auto next = std::move(deferred.front());
      deferred.pop_front();
      next();
    }
  }

  // ---- control::Controller ----
  void client_connected(control::Client& client) override { clients[client.id()] = &client; }
  void client_gone(ClientId client) override {
    clients.erase(client);
    gone.push_back(client);
    std::erase_if(subscriptions, [&](const auto& s) { return s.second.client->id() == client; });
  }
  void attach(control::Client&, pid_t pid, control::AttachOptions options,
              control::Reply<control::TargetView> reply) override {
    note("attach", pid);
    last_attach = options;
    control::TargetView view;
    view.id.pid = pid;
    view.comm = "comm";
    view.exe = "/exe";
    view.follow_fork = options.follow_fork;
    on_attach(pid);
    answer([reply, view] { reply(view); });
  }
  void detach(pid_t pid, control::Reply<void> reply) override {
    note("detach", pid);
    const bool known = std::erase_if(target_views, [&](const auto& t) { return t.id.pid == pid; }) > 0;
    answer([reply, pid, known] { known ? reply({}) : reply(not_attached(pid)); });
  }
  void resume(pid_t pid, control::Reply<void> reply) override {
    note("resume", pid);
    answer([reply] { reply({}); });
  }
  std::vector<control::TargetView> targets() const override { return target_views; }

  void add(control::Client&, control::AddRequest request, control::Reply<control::Added> reply) override {
    note("add", request.pid);
    on_attach(request.pid);
    last_add = request;
    for (const auto& spec : request.probes)
      if (spec.definition == "bad") {
        const Error error{Reason::bad_definition, "no such type", "types are u8 ...", 7};
        return answer([reply, error] { reply(error); });
      }
    control::Added added{{}, skipped};
    for (const auto& spec : request.probes) {
      add_probe(static_cast<std::uint32_t>(probe_views.size()) + 1, request.pid, "probes/x");
      probe_views.back().definition = spec.definition;
      added.probes.push_back(probe_views.back());
    }
    answer([reply, added] { reply(added); });
  }
  void remove(control::Client& client, control::Selector which,
              control::Reply<std::vector<control::ProbeView>> reply) override {
    note("remove", static_cast<pid_t>(which.ids.size() + which.names.size()));
    std::vector<control::ProbeView> removed;
    std::erase_if(probe_views, [&](const control::ProbeView& p) {
      const bool hit = (which.all || std::ranges::count(which.ids, p.id) || std::ranges::count(which.names, p.name)) &&
                       client.may_trace(p.pid);
      if (hit) removed.push_back(p);
      return hit;
    });
    answer([reply, removed] { reply(removed); });
  }
  void set_enabled(control::Client&, control::Selector, bool enabled, control::Reply<control::Changed> reply) override {
    note("set_enabled", enabled);
    answer([reply, changed = control::Changed{probe_views, failed}] { reply(changed); });
  }
  void look(std::optional<pid_t>, std::function<void()> done) override { done(); }
  std::vector<control::ProbeView> probes(std::optional<pid_t> pid) const override {
    ++lists;
    auto views = probe_views;
    std::erase_if(views, [&](const control::ProbeView& p) { return pid && p.pid != *pid; });
    return views;
  }

  Result<control::Subscribed> subscribe(control::Client& client, control::SubscribeRequest request) override {
    const std::uint64_t id = ++last_subscription_;
    subscriptions[id] = {&client, std::move(request)};
    if (events_inside_subscribe) {
      emit(id, "{\"early\":true}");
      flush(id);
    }
    return control::Subscribed{id, 11};
  }
  Result<control::SubscriptionTotals> unsubscribe(control::Client&, std::uint64_t id) override {
    flush(id);
    const Subscription s = subscriptions.at(id);
    subscriptions.erase(id);
    return control::SubscriptionTotals{s.delivered, s.missed};
  }

  void set_armed(control::Client&, bool armed, control::Reply<std::vector<control::Failed>> reply) override {
    note("set_armed", armed);
    answer([reply, failed = failed] { reply(failed); });
  }
  void set_optimize(bool enabled, control::Reply<void> reply) override {
    note("set_optimize", enabled);
    reply({});
  }
  control::Status status() const override {
    control::Status s;
    s.clients = static_cast<std::uint32_t>(clients.size());
    s.targets = 77;
    s.hits = 9007199254740993u;  // 2^53 + 1: JavaScript would lose it, we must not
    return s;
  }
  void functions(control::Client&, pid_t pid, std::string glob, std::size_t limit,
                 control::Shape<symbols::Function> shape, control::Reply<std::string> reply) override {
    note("functions " + glob, pid);
    auto found = function_views;
    if (limit != 0 && found.size() > limit) found.resize(limit);
    answer([reply, shape, found] { reply(shape(found)); });
  }

  void variables(control::Client&, pid_t pid, std::string location, control::Shape<dwarf::VisibleVariable> shape,
                 control::Reply<std::string> reply) override {
    note("variables " + location, pid);
    answer([reply, shape] { reply(shape(std::vector<dwarf::VisibleVariable>{{"x", "int", "parameter", ""}})); });
  }

  void lines(control::Client&, pid_t pid, std::string file, std::size_t, control::Shape<symbols::SourceLine> shape,
             control::Reply<std::string> reply) override {
    note("lines " + file, pid);
    answer([reply, shape] {
      reply(shape(std::vector<symbols::SourceLine>{{"/src/a.c", 3, RemoteAddr{0x1000}, "f", "a"}}));
    });
  }

  void usdt(control::Client&, pid_t pid, std::string pattern, std::size_t, control::Shape<symbols::UsdtProbe> shape,
            control::Reply<std::string> reply) override {
    note("usdt " + pattern, pid);
    answer([reply, shape] { reply(shape(std::vector<symbols::UsdtProbe>())); });
  }

 private:
  static Error not_attached(pid_t pid) {
    return {Reason::not_attached, "process " + std::to_string(pid) + " is not traced", "target.list"};
  }
  void note(const std::string& what, pid_t pid) { calls.push_back(what + " " + std::to_string(pid)); }
  void answer(std::function<void()> reply) {
    if (defer)
      deferred.push_back(std::move(reply));
    else
      reply();
  }
  std::uint64_t last_subscription_ = 0;
};

}  // namespace probed::test
