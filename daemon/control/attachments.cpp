// Targets: attach, detach, their operations' order, and what the tracer reports of their lives.
#include "daemon/control/attachments.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/control/batches.hpp"
#include "daemon/control/parts.hpp"
#include "daemon/tracer/recovery/left_behind.hpp"
#include "proto/json.hpp"

namespace probed::control {

// " (exit code 0)", " (killed by signal 9)"
static std::string how_text(const tracer::WaitStatus& how) {
  using Kind = tracer::WaitStatus::Kind;
  if (how.kind() == Kind::exited) return fmt::format(" (exit code {})", how.code());
  return how.kind() == Kind::killed ? fmt::format(" (killed by signal {})", how.signal()) : "";
}

// "; its probe is gone", "; its 3 probes are gone"; nothing where it had none.
static std::string with_its_probes(std::size_t count) {
  if (count == 0) return "";
  return count == 1 ? "; its probe is gone" : fmt::format("; its {} probes are gone", count);
}

void Attachments::enqueue(pid_t pid, std::function<void(std::function<void()>)> operation, ClientId whose,
                          std::function<void()> drop) {
  const auto run = [this, pid, operation = std::move(operation)] {
    operation([this, pid] {
      // Through the loop: an operation may complete before it has returned.
      post([this, pid] {
        const auto it = registry_.targets.find(pid);
        if (it == registry_.targets.end()) return;
        it->second.busy = false;
        run_next(pid);
      });
    });
  };
  registry_.target(pid).operations.push_back({run, whose, std::move(drop)});
  run_next(pid);
}

// Nothing is done for clients that have gone: those that come and go in a loop would hold up all others. Nor is
// anything when all targets are let go for good.
void Attachments::run_next(pid_t pid) {
  while (true) {
    const auto it = registry_.targets.find(pid);
    if (it == registry_.targets.end() || it->second.busy) return;
    if (it->second.operations.empty()) return forget_if_idle(pid);
    const Target::Operation operation = std::move(it->second.operations.front());
    it->second.operations.pop_front();
    const bool wanted = operation.whose == ClientId::none || registry_.clients.contains(operation.whose);
    const bool runs = wanted && !parts_.shutdown_timer;
    it->second.busy = runs;
    if (runs) return operation.run();
    if (operation.drop) operation.drop();
  }
}

void Attachments::forget_if_idle(pid_t pid) {
  const auto it = registry_.targets.find(pid);
  if (it == registry_.targets.end()) return;
  const Target& target = it->second;
  if (!target.attached && !target.busy && target.operations.empty()) registry_.targets.erase(it);
}

TargetView Attachments::target_view(const Target& target) const {
  TargetView view;
  view.id = target.id;
  view.comm = process::comm(target.id.pid);
  view.exe = target.exe;
  const auto threads = process::thread_ids(target.id.pid);
  view.threads = threads ? static_cast<std::uint32_t>(threads->size()) : 0;
  view.probes = static_cast<std::uint32_t>(registry_.probe_count(target.id.pid));
  view.follow_fork = target.follow_fork;
  view.longest_pause_ns = target.longest_pause;
  view.starved_ns = parts_.tracer->urgency().starved_ns() - target.starved_before;
  view.children_let_go = target.children_let_go;
  return view;
}

std::vector<TargetView> Attachments::targets() const {
  std::vector<TargetView> views;
  for (const auto& [pid, target] : registry_.targets)
    if (target.attached) {
      views.push_back(target_view(target));
      if (views.back().threads == 0)
        parts_.tracer->post([p = pid](tracer::Engine& engine) { engine.forget_if_gone(p); });
    }
  return views;
}

void Attachments::ensure_attached(pid_t pid, tracer::AttachParams params, std::chrono::steady_clock::time_point until,
                                  Reply<void> reply) {
  const auto known = registry_.targets.find(pid);
  const bool attached = known != registry_.targets.end() && known->second.attached;
  const auto attach = [this, pid, params, until, reply = std::move(reply)] {
    parts_.tracer->post([this, pid, params, until, reply](tracer::Engine& engine) {
      if (engine.is_detaching(pid) && std::chrono::steady_clock::now() < until) {
        return post([this, pid, params, until, reply] {
          const auto timer = std::make_shared<boost::asio::steady_timer>(parts_.io, std::chrono::milliseconds(5));
          timer->async_wait([this, pid, params, until, reply, timer](const boost::system::error_code& error) {
            if (!error) ensure_attached(pid, params, until, reply);
          });
        });
      }
      auto result = engine.attach(pid, params);
      post([this, pid, params, reply, result = std::move(result)]() mutable {
        if (!result) return reply(std::move(result).error());
        Target& t = registry_.target(pid);
        if (!t.attached) {
          t.attached = true;
          t.members = {pid};
          t.longest_pause = 0;
          t.starved_before = parts_.tracer->urgency().starved_ns();
          t.children_let_go = 0;
          t.loader_watch = {};
        }
        t.id = result->id;
        t.exe = process::exe(pid);
        t.threads = result->threads;
        t.execs = result->execs;
        t.overlay = result->overlay;
        if (parts_.keeping) t.mark = process::program_mark(pid);
        t.follow_fork |= params.follow_fork;
        reply({});
      });
    });
  };
  if (attached || !tracer::may_hold_left(pid)) return attach();
  // Before anything of ours is in it: what a daemon that was killed has left.
  auto recover = [this, pid, attach] {
    tracer::recover_left_in(pid);
    post(attach);
  };
  parts_.workers.post({0, Work::change, std::move(recover), nullptr});  // the daemon's own business, whoever asks
}

void Attachments::attach(Client& client, pid_t pid, AttachOptions options, Reply<TargetView> reply) {
  const ClientId who = client.id();
  const Owner owner{client.user(), client.group()};
  const auto drop = [reply] { reply(Access::client_has_gone()); };
  const auto run = [=, this, reply = std::move(reply)](std::function<void()> next) {
    const tracer::AttachParams params{options.follow_fork, true, options.hold_at_entry, options.hold_at_execs};
    if (auto room = parts_.pool.check_descriptors(owner.user, pid); !room) {
      next();
      return reply(std::move(room).error());
    }
    ensure_attached(pid, params, [=, this](Result<void> result) {
      if (result) result = parts_.access.check_still_allowed(who, pid);
      if (result) {
        Target& t = registry_.target(pid);
        t.attached_for.insert(who);
        if (options.persist) t.attached_by = owner;
        if (options.hold_at_entry) t.holder = who;
        if (options.hold_at_execs) t.holds_execs = who;
        t.interested.insert(who);
        parts_.keeper.keep(pid);
        reply(target_view(t));
        return next();
      }
      const bool holds = options.hold_at_entry || options.hold_at_execs;
      if (Target& t = registry_.target(pid); holds && t.holder == ClientId::none && t.holds_execs == ClientId::none)
        forget_hold(t);
      next();
      detach_if_unused(pid, [reply, error = std::move(result).error()] { reply(error); });
    });
  };
  enqueue(pid, run, who, drop);
}

void Attachments::detach(pid_t pid, Reply<void> reply) {
  const auto it = registry_.targets.find(pid);
  if (it == registry_.targets.end() || !it->second.attached)
    return reply(Error{
        Reason::not_attached, fmt::format("process {} is not attached", pid), "see `probectl ps` for what is", {}});
  enqueue(pid, [=, this, reply = std::move(reply)](std::function<void()> next) {
    parts_.tracer->post([=, this](tracer::Engine& engine) {
      engine.detach(pid, [=, this](Result<void> result) {
        post([=, this]() mutable {
          parts_.stream.drain_all();
          if (const auto t = registry_.targets.find(pid); t != registry_.targets.end())
            notify_interested(t->second, "target.detached",
                              fmt::format(R"({{"pid":{}{}}})", pid, children_let_go(t->second)));
          std::vector<ProbeId> ids;
          for (const auto& [id, probe] : registry_.probes)
            if (probe.pid == pid) ids.push_back(id);
          for (const ProbeId id : ids) parts_.changes.erase_probe(id);
          drop_target(pid);
          reply(std::move(result));
          next();
        });
      });
    });
  });
}

void Attachments::detach_if_unused(pid_t pid, std::function<void()> done) {
  enqueue(pid, [=, this, done = std::move(done)](std::function<void()> next) {
    const auto it = registry_.targets.find(pid);
    const bool kept_by_probes = it != registry_.targets.end() && it->second.attached && !it->second.stays();
    if (!kept_by_probes || registry_.probe_count(pid) > 0) {
      // They end with the program that it runs, and then it is let go.
      if (kept_by_probes) parts_.tracer->post([pid](tracer::Engine& engine) { engine.forget_keep(pid); });
      done();
      return next();
    }
    parts_.tracer->post([=, this](tracer::Engine& engine) {
      engine.detach(pid, [=, this](Result<void>) {
        post([=, this] {
          drop_target(pid);
          done();
          next();
        });
      });
    });
  });
}

void Attachments::drop_target(pid_t pid) {
  const auto it = registry_.targets.find(pid);
  if (it == registry_.targets.end()) return;
  it->second.attached = false;
  it->second.attached_for.clear();
  it->second.attached_by.reset();
  parts_.keeper.keep(pid);
  it->second.holder = it->second.holds_execs = ClientId::none;
  it->second.interested.clear();
  it->second.members.clear();
  it->second.own_end.reset();
  forget_if_idle(pid);
}

void Attachments::resume(pid_t pid, Reply<void> reply) {
  if (const auto it = registry_.targets.find(pid); it != registry_.targets.end()) it->second.holder = ClientId::none;
  parts_.tracer->post([this, pid, reply = std::move(reply)](tracer::Engine& engine) {
    post([reply, result = engine.resume_held(pid)]() mutable { reply(std::move(result)); });
  });
}

// ---- lives ----------------------------------------------------------------------------------------------------------

void Attachments::notify_interested(const Target& target, std::string_view method, const std::string& params) {
  for (const ClientId id : target.interested)
    if (const auto client = registry_.clients.find(id); client != registry_.clients.end())
      client->second->notify(method, params);
}

void Attachments::forget_hold(Target& target) {
  target.holder = target.holds_execs = ClientId::none;
  parts_.tracer->post([pid = target.id.pid](tracer::Engine& engine) { engine.forget_hold(pid); });
}

// For the messages that end a target's story.
std::string Attachments::children_let_go(const Target& target) {
  return target.children_let_go == 0 ? "" : fmt::format(R"(,"childrenLetGo":{})", target.children_let_go);
}

// `,"code":3` or `,"signal":9`; empty: it isn't known.
static std::string how_params(const std::optional<tracer::WaitStatus>& how) {
  using Kind = tracer::WaitStatus::Kind;
  if (how && how->kind() == Kind::exited) return fmt::format(R"(,"code":{})", how->code());
  if (how && how->kind() == Kind::killed) return fmt::format(R"(,"signal":{})", how->signal());
  return "";
}

// Only of one that is held at its first instruction: others may have given them up.
static std::string unprivileged_param(pid_t pid, bool held) {
  return held && process::lacks_privileges_of_program(pid) ? R"(,"unprivileged":true)" : "";
}

void Attachments::on_process_gone(pid_t root, pid_t pid, std::optional<tracer::WaitStatus> how) {
  const auto it = registry_.targets.find(root);
  if (it == registry_.targets.end() || it->second.members.erase(pid) == 0) return;
  Target& t = it->second;
  if (pid == root) t.own_end = how;
  parts_.stream.drain_all();
  if (!t.members.empty())  // the children it is followed into live on
    return notify_interested(
        t, "target.memberExited",
        fmt::format(R"({{"pid":{},"member":{}{},"left":{}}})", root, pid, how_params(how), t.members.size()));
  const std::set<ClientId> interested = t.interested;
  spdlog::info("process {} has ended{}{}", root, t.own_end ? how_text(*t.own_end) : "",
               with_its_probes(registry_.probe_count(root)));
  parts_.changes.mark_gone(root, "its process has ended");
  const std::string params = fmt::format(R"({{"pid":{}{}{}}})", root, how_params(t.own_end), children_let_go(t));
  for (const ClientId id : interested)
    if (const auto client = registry_.clients.find(id); client != registry_.clients.end())
      client->second->notify("target.exited", params);
  drop_target(root);
}

void Attachments::on_process_execed(pid_t root, pid_t pid, bool kept, std::string_view comm) {
  const auto it = registry_.targets.find(root);
  if (it == registry_.targets.end()) return;
  if (pid != root) return on_child_execed(it->second, pid, kept, comm);
  parts_.stream.drain_all();
  Target& t = it->second;
  const std::set<ClientId> interested = t.interested;
  spdlog::info("process {} runs another program{}", root, with_its_probes(registry_.probe_count(root)));
  parts_.changes.mark_gone(root, "its process runs another program");
  t.loader_watch = {};
  t.exe = process::exe(root);
  if (parts_.keeping) t.mark = process::program_mark(root);
  std::string name;
  proto::append_json_string(name, comm);
  const bool held = t.holder != ClientId::none || t.holds_execs != ClientId::none;
  const std::string unprivileged = unprivileged_param(root, held);
  std::set<ClientId> denied;
  const bool ended = process::has_ended(root);  // told next; nobody may trace what isn't there
  for (const ClientId id : interested) {
    const auto client = registry_.clients.find(id);
    if (client == registry_.clients.end()) continue;
    const bool allowed = ended || client->second->may_trace(root);
    if (!allowed) denied.insert(id);
    client->second->notify("target.execed", fmt::format(R"({{"pid":{},"attached":{},"comm":{}{}{}}})", root,
                                                        kept && allowed, name, unprivileged, children_let_go(t)));
  }
  if (!ended) parts_.access.forget_denied(t, denied);
  parts_.keeper.keep(root);
  if (!kept) return drop_target(root);
  if (!t.stays()) detach_if_unused(root, [] {});
}

// `kept`: it is a target of its own now, held at the entry of its program for whoever holds its parent's execs, as long
// as that one may trace it. Else it has been let go, followed or (made by vfork) not.
void Attachments::on_child_execed(Target& parent, pid_t pid, bool kept, std::string_view comm) {
  const pid_t root = parent.id.pid;
  const auto holder = registry_.clients.find(parent.holds_execs);
  const bool allowed = kept && holder != registry_.clients.end() && holder->second->may_trace(pid);
  std::string name;
  proto::append_json_string(name, comm);
  notify_interested(parent, "target.left",
                    fmt::format(R"({{"pid":{},"child":{},"comm":{},"attached":{}{}}})", root, pid, name, allowed,
                                unprivileged_param(pid, kept)));
  if (kept) {
    Target& t = registry_.target(pid);
    if (const auto id = process::target_id(pid)) t.id = *id;
    t.attached = true;
    t.starved_before = parts_.tracer->urgency().starved_ns();
    t.members = {pid};
    t.exe = process::exe(pid);
    t.follow_fork = parent.follow_fork;
    if (allowed) {
      t.holder = t.holds_execs = parent.holds_execs;
      t.attached_for = t.interested = {parent.holds_execs};
    } else {
      forget_hold(t);
      detach_if_unused(pid, [] {});
    }
  }
  if (parent.members.contains(pid)) on_process_gone(root, pid, std::nullopt);
}

void Attachments::on_process_ready(pid_t pid) {
  const auto it = registry_.targets.find(pid);
  if (it == registry_.targets.end()) return;
  if (it->second.holder == ClientId::none && it->second.holds_execs == ClientId::none)
    return;  // it has gone on meanwhile
  notify_interested(it->second, "target.ready", fmt::format(R"({{"pid":{}}})", pid));
}

}  // namespace probed::control
