// Targets: attach, detach, their operations' order, and what the tracer reports of their lives.
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/control/controller_impl.hpp"
#include "daemon/control/controller_parts.hpp"
#include "daemon/tracer/recovery/left_behind.hpp"
#include "proto/json.hpp"

namespace probed::control {

constexpr auto kForNames = std::chrono::milliseconds(20);  // to enter who records

// Hands what the tracer reports over to the Asio thread.
class ControllerImpl::TracerListener final : public tracer::Listener {
 public:
  explicit TracerListener(ControllerImpl& owner) : owner_(owner) {}
  void process_gone(pid_t root, pid_t pid, std::optional<tracer::WaitStatus> how) override {
    owner_.post([&o = owner_, root, pid, how] { o.on_process_gone(root, pid, how); });
  }
  void process_execed(pid_t root, pid_t pid, bool kept, std::string comm) override {
    owner_.post([&o = owner_, root, pid, kept, comm = std::move(comm)] { o.on_process_execed(root, pid, kept, comm); });
  }
  void process_ready(pid_t pid) override {
    owner_.post([&o = owner_, pid] { o.on_process_ready(pid); });
  }
  void process_forked(pid_t root, pid_t child) override {
    owner_.post([&o = owner_, root, child] {
      const auto it = o.targets_.find(root);
      if (it == o.targets_.end()) return;
      it->second.members.insert(child);
      o.notify_interested(it->second, "target.forked", fmt::format(R"({{"pid":{},"child":{}}})", root, child));
    });
  }
  void child_let_go(pid_t root) override {
    owner_.post([&o = owner_, root] {
      if (const auto it = o.targets_.find(root); it != o.targets_.end()) ++it->second.children_let_go;
    });
  }
  void limit_reached(std::vector<ProbeId> probes) override {
    owner_.post([&o = owner_, probes = std::move(probes)] { o.on_limit_reached(probes); });
  }
  void taps_added(events::FeedPtr feed, std::vector<Tap> taps, pid_t pid, std::uint64_t ticket) override {
    // Jumps wait for the answer; until then each hit is a stop.
    owner_.tracer_->urgency().hurry_others(kForNames);
    owner_.post([&o = owner_, feed = std::move(feed), taps = std::move(taps), pid, ticket] {
      o.on_taps_added(feed, taps, pid, ticket);
    });
  }
  void taps_unused(events::FeedPtr feed, std::vector<std::uint32_t> indices, pid_t pid) override {
    owner_.post([&o = owner_, feed = std::move(feed), indices = std::move(indices), pid] {
      o.on_taps_unused(feed, indices, pid);
    });
  }
  void feed_closed(events::FeedPtr feed) override {
    owner_.post([&o = owner_, feed = std::move(feed)] { o.on_feed_closed(feed); });
  }
  void longest_pause(pid_t root, std::uint64_t nanoseconds) override {
    owner_.post([&o = owner_, root, nanoseconds] {
      o.longest_pause_ = std::max(o.longest_pause_, nanoseconds);
      if (const auto it = o.targets_.find(root); it != o.targets_.end())
        it->second.longest_pause = std::max(it->second.longest_pause, nanoseconds);
    });
  }
  void code_gone(pid_t root, std::vector<ProbeId> probes, const char* why) override {
    owner_.post([&o = owner_, root, probes = std::move(probes), why] { o.on_code_gone(root, probes, why); });
  }
  void libraries_changed(pid_t root, std::uint64_t ticket) override {
    owner_.post([&o = owner_, root, ticket] { o.on_libraries_changed(root, ticket); });
  }

 private:
  ControllerImpl& owner_;
};

static symbols::ModuleCache::Options module_options(symbols::Debuginfod& servers) {
  symbols::ModuleCache::Options options;
  if (symbols::Debuginfod::available())
    options.fetch = [&servers](std::span<const std::byte> build_id) { return servers.fetch(build_id); };
  return options;
}

ControllerImpl::ControllerImpl(boost::asio::io_context& io, std::size_t queue_bytes, std::string state_directory)
    : io_(io),
      queue_(queue_bytes),
      queue_event_(io, ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      poll_timer_(io),
      limits_timer_(io),
      modules_(module_options(debuginfod_)),
      listener_(std::make_unique<TracerListener>(*this)),
      tracer_(std::make_unique<tracer::Tracer>(tracer::HitSink{queue_, queue_event_.native_handle()}, *listener_)) {
  tracer_->post(
      [directory = std::move(state_directory)](tracer::Engine& engine) { engine.set_state_directory(directory); });
  poll_hits();
}

ControllerImpl::~ControllerImpl() {
  debuginfod_.stop();
  workers_.stop(std::chrono::hours(1));
  tracer_.reset();
}

void ControllerImpl::shut_down(std::chrono::milliseconds limit, std::function<void()> done) {
  debuginfod_.stop();
  tracer_->urgency().hurry_others(kForLettingGo);
  auto once = std::make_shared<std::function<void()>>(std::move(done));
  const auto finish = [this, once] {
    if (!*once) return;
    for (auto& [pid, file] : kept_) file.attempts = 0;  // whatever they do, this daemon has not ended by it
    keep_all();
    keeping_.reset();
    std::exchange(*once, nullptr)();
  };
  shutdown_timer_ = std::make_unique<boost::asio::steady_timer>(io_, limit);
  shutdown_timer_->async_wait([finish](const boost::system::error_code& error) {
    if (error) return;
    spdlog::error("some threads could not be stopped in time: their text is restored, they are left to the kernel");
    finish();
  });
  tracer_->post([this, finish](tracer::Engine& engine) {
    engine.detach_all([this, finish] {
      post([this, finish] {
        shutdown_timer_->cancel();
        finish();
      });
    });
  });
}

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

// ---- the order of operations ----------------------------------------------------------------------------------------

Target& ControllerImpl::target(pid_t pid) {
  Target& target = targets_[pid];
  target.id.pid = pid;
  return target;
}

void ControllerImpl::enqueue(pid_t pid, std::function<void(std::function<void()>)> operation, ClientId whose,
                             std::function<void()> drop) {
  const auto run = [this, pid, operation = std::move(operation)] {
    operation([this, pid] {
      // Through the loop: an operation may complete before it has returned.
      post([this, pid] {
        const auto it = targets_.find(pid);
        if (it == targets_.end()) return;
        it->second.busy = false;
        run_next(pid);
      });
    });
  };
  target(pid).operations.push_back({run, whose, std::move(drop)});
  run_next(pid);
}

// Nothing is done for clients that have gone: those that come and go in a loop would hold up all others.
void ControllerImpl::run_next(pid_t pid) {
  while (true) {
    const auto it = targets_.find(pid);
    if (it == targets_.end() || it->second.busy) return;
    if (it->second.operations.empty()) return forget_if_idle(pid);
    const Target::Operation operation = std::move(it->second.operations.front());
    it->second.operations.pop_front();
    const bool runs = operation.whose == ClientId::none || clients_.contains(operation.whose);
    it->second.busy = runs;
    if (runs) return operation.run();
    operation.drop();
  }
}

void ControllerImpl::forget_if_idle(pid_t pid) {
  const auto it = targets_.find(pid);
  if (it == targets_.end()) return;
  const Target& target = it->second;
  if (!target.attached && !target.busy && target.operations.empty()) targets_.erase(it);
}

// ---- attach and detach ----------------------------------------------------------------------------------------------

template <class Pred>
std::size_t ControllerImpl::count_probes(Pred pred) const {
  return static_cast<std::size_t>(std::ranges::count_if(probes_, [&](const auto& entry) {
    const Probe& probe = entry.second;
    const bool there = !probe.gone || (probe.pending && !probe.ended);
    return there && is_shown(probe) && probe.committed && pred(probe);
  }));
}

std::size_t ControllerImpl::probe_count(pid_t pid) const {
  return count_probes([pid](const Probe& probe) { return probe.pid == pid; });
}

std::size_t ControllerImpl::probe_count_of_user(uid_t user) const {
  return count_probes([user](const Probe& probe) { return probe.user == user; });
}

TargetView ControllerImpl::view(const Target& target) const {
  TargetView view;
  view.id = target.id;
  view.comm = process::comm(target.id.pid);
  view.exe = target.exe;
  const auto threads = process::thread_ids(target.id.pid);
  view.threads = threads ? static_cast<std::uint32_t>(threads->size()) : 0;
  view.probes = static_cast<std::uint32_t>(probe_count(target.id.pid));
  view.follow_fork = target.follow_fork;
  view.longest_pause_ns = target.longest_pause;
  view.starved_ns = tracer_->urgency().starved_ns() - target.starved_before;
  view.children_let_go = target.children_let_go;
  return view;
}

std::vector<TargetView> ControllerImpl::targets() const {
  std::vector<TargetView> views;
  for (const auto& [pid, target] : targets_)
    if (target.attached) {
      views.push_back(view(target));
      if (views.back().threads == 0) tracer_->post([p = pid](tracer::Engine& engine) { engine.forget_if_gone(p); });
    }
  return views;
}

void ControllerImpl::ensure_attached(pid_t pid, tracer::AttachParams params,
                                     std::chrono::steady_clock::time_point until, Reply<void> reply) {
  const auto known = targets_.find(pid);
  const bool attached = known != targets_.end() && known->second.attached;
  const auto attach = [this, pid, params, until, reply = std::move(reply)] {
    tracer_->post([this, pid, params, until, reply](tracer::Engine& engine) {
      if (engine.is_detaching(pid) && std::chrono::steady_clock::now() < until) {
        return post([this, pid, params, until, reply] {
          const auto timer = std::make_shared<boost::asio::steady_timer>(io_, std::chrono::milliseconds(5));
          timer->async_wait([this, pid, params, until, reply, timer](const boost::system::error_code& error) {
            if (!error) ensure_attached(pid, params, until, reply);
          });
        });
      }
      auto result = engine.attach(pid, params);
      post([this, pid, params, reply, result = std::move(result)]() mutable {
        if (!result) return reply(std::move(result).error());
        Target& t = target(pid);
        if (!t.attached) {
          t.attached = true;
          t.members = {pid};
          t.longest_pause = 0;
          t.starved_before = tracer_->urgency().starved_ns();
          t.children_let_go = 0;
          t.loader_watch = {};
        }
        t.id = result->id;
        t.exe = process::exe(pid);
        t.threads = result->threads;
        t.execs = result->execs;
        t.overlay = result->overlay;
        if (keeping_) t.mark = process::program_mark(pid);
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
  workers_.post({0, Work::change, std::move(recover), nullptr});  // the daemon's own business, whoever asks
}

// Between the caller's check and the seize the process may have started another program, a set-uid one say. From the
// seize on, nothing planned for one program reaches the next (tracer::AttachResult).
Result<void> ControllerImpl::check_still_allowed(ClientId who, pid_t pid) const {
  const auto client = clients_.find(who);
  if (client != clients_.end() && client->second->may_trace(pid)) return {};
  if (process::has_ended(pid))
    return Error{Reason::no_such_process, fmt::format("process {} has just ended", pid), "", {}};
  return Error{Reason::permission_denied,
               fmt::format("process {} has just become one that you may not trace", pid),
               "it has started another program, or changed its user; see `ps -o uid,comm -p` what it is now",
               {}};
}

// The program first: it is of this one's end or start that the look at the user could be out of date.
Result<void> ControllerImpl::check_same_program(ClientId who, pid_t pid, const symbols::TargetSymbols& read) const {
  if (auto allowed = check_still_allowed(who, pid); !allowed) return allowed;
  const auto client = clients_.find(who);
  if (client != clients_.end() && client->second->user() == 0) return {};
  if (read.is_current()) return {};
  return Error{Reason::permission_denied,
               fmt::format("process {} has started another program meanwhile, or has ended", pid),
               "ask again",
               {}};
}

Error ControllerImpl::took_too_long() {
  return {Reason::timed_out,
          "reading the files of the process takes too long, or one of them is never read to its end",
          "look where its program, its libraries and their debug files are: a file server may be gone",
          {}};
}

Error ControllerImpl::takes_too_much() {
  return {Reason::limit_exceeded,
          "the debug information of this user's programs takes more memory than the daemon has for one user",
          "let go of other programs, probe by symbol without variables, or have root ask",
          {}};
}

Error ControllerImpl::no_memory() {
  return {Reason::limit_exceeded,
          "the daemon has no memory left to read the files of the process",
          "raise its limit (ulimit -v, MemoryMax=), or probe less at a time",
          {}};
}

Error ControllerImpl::client_has_gone() {
  return {Reason::internal, "the client has gone before its request was begun", "", {}};
}

// A target costs some descriptors: its memory, its maps twice, its page tables, its journal. Half of those that the
// daemon may have are for targets that users add; the rest is for root's, for connections, and for followed children to
// come.
Result<void> ControllerImpl::check_descriptors(uid_t user, pid_t pid) const {
  const auto known = targets_.find(pid);
  if (user == 0 || user == ::geteuid() || (known != targets_.end() && known->second.attached)) return {};
  constexpr rlim_t kEach = 6;
  rlim_t used = 0;
  for (const auto& [id, target] : targets_)
    if (target.attached) used += kEach * std::max<std::size_t>(1, target.members.size());
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || used + kEach <= limit.rlim_cur / 2) return {};
  return Error{Reason::limit_exceeded,
               fmt::format("the daemon has too many targets: they use half of its {} file descriptors", limit.rlim_cur),
               "let go of others (probectl ps, detach), or have the daemon's limit raised (ulimit -n, LimitNOFILE=)",
               {}};
}

void ControllerImpl::attach(Client& client, pid_t pid, AttachOptions options, Reply<TargetView> reply) {
  const ClientId who = client.id();
  const Owner owner{client.user(), client.group()};
  const auto drop = [reply] { reply(client_has_gone()); };
  const auto run = [=, this, reply = std::move(reply)](std::function<void()> next) {
    const tracer::AttachParams params{options.follow_fork, true, options.hold_at_entry, options.hold_at_execs};
    if (auto room = check_descriptors(owner.user, pid); !room) {
      next();
      return reply(std::move(room).error());
    }
    ensure_attached(pid, params, [=, this](Result<void> result) {
      if (result) result = check_still_allowed(who, pid);
      if (result) {
        Target& t = target(pid);
        t.attached_for.insert(who);
        if (options.persist) t.attached_by = owner;
        if (options.hold_at_entry) t.holder = who;
        if (options.hold_at_execs) t.holds_execs = who;
        t.interested.insert(who);
        keep(pid);
        reply(view(t));
        return next();
      }
      const bool holds = options.hold_at_entry || options.hold_at_execs;
      if (Target& t = target(pid); holds && t.holder == ClientId::none && t.holds_execs == ClientId::none)
        forget_hold(t);
      next();
      detach_if_unused(pid, [reply, error = std::move(result).error()] { reply(error); });
    });
  };
  enqueue(pid, run, who, drop);
}

void ControllerImpl::detach(pid_t pid, Reply<void> reply) {
  const auto it = targets_.find(pid);
  if (it == targets_.end() || !it->second.attached)
    return reply(Error{
        Reason::not_attached, fmt::format("process {} is not attached", pid), "see `probectl ps` for what is", {}});
  enqueue(pid, [=, this, reply = std::move(reply)](std::function<void()> next) {
    tracer_->post([=, this](tracer::Engine& engine) {
      engine.detach(pid, [=, this](Result<void> result) {
        post([=, this]() mutable {
          drain_all();
          if (const auto t = targets_.find(pid); t != targets_.end())
            notify_interested(t->second, "target.detached",
                              fmt::format(R"({{"pid":{}{}}})", pid, children_let_go(t->second)));
          std::vector<ProbeId> ids;
          for (const auto& [id, probe] : probes_)
            if (probe.pid == pid) ids.push_back(id);
          for (const ProbeId id : ids) erase_probe(id);
          drop_target(pid);
          reply(std::move(result));
          next();
        });
      });
    });
  });
}

// When the last probe of a target that nobody keeps attached has gone, or nobody keeps it attached any more.
void ControllerImpl::detach_if_unused(pid_t pid, std::function<void()> done) {
  enqueue(pid, [=, this, done = std::move(done)](std::function<void()> next) {
    const auto it = targets_.find(pid);
    const bool kept_by_probes = it != targets_.end() && it->second.attached && !it->second.stays();
    if (!kept_by_probes || probe_count(pid) > 0) {
      // They end with the program that it runs, and then it is let go.
      if (kept_by_probes) tracer_->post([pid](tracer::Engine& engine) { engine.forget_keep(pid); });
      done();
      return next();
    }
    tracer_->post([=, this](tracer::Engine& engine) {
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

void ControllerImpl::drop_target(pid_t pid) {
  const auto it = targets_.find(pid);
  if (it == targets_.end()) return;
  it->second.attached = false;
  it->second.attached_for.clear();
  it->second.attached_by.reset();
  keep(pid);
  it->second.holder = it->second.holds_execs = ClientId::none;
  it->second.interested.clear();
  it->second.members.clear();
  it->second.own_end.reset();
  forget_if_idle(pid);
}

void ControllerImpl::resume(pid_t pid, Reply<void> reply) {
  if (const auto it = targets_.find(pid); it != targets_.end()) it->second.holder = ClientId::none;
  tracer_->post([this, pid, reply = std::move(reply)](tracer::Engine& engine) {
    post([reply, result = engine.resume_held(pid)]() mutable { reply(std::move(result)); });
  });
}

// ---- lives ----------------------------------------------------------------------------------------------------------

void ControllerImpl::notify_interested(const Target& target, std::string_view method, const std::string& params) {
  for (const ClientId id : target.interested)
    if (const auto client = clients_.find(id); client != clients_.end()) client->second->notify(method, params);
}

// Whoever wanted it held has gone, or may not any more: it goes on, or will not be held.
void ControllerImpl::forget_hold(Target& target) {
  target.holder = target.holds_execs = ClientId::none;
  tracer_->post([pid = target.id.pid](tracer::Engine& engine) { engine.forget_hold(pid); });
}

// A set-user-ID program, one with capabilities or that may not be read: nothing of it is for whoever could trace what
// the process ran before. Nobody else could let it go on: that would be refused as everything else.
void ControllerImpl::forget_denied(Target& target, const std::set<ClientId>& denied) {
  for (const ClientId id : denied) {
    target.interested.erase(id);
    target.attached_for.erase(id);
  }
  if (denied.contains(target.holder) || denied.contains(target.holds_execs)) forget_hold(target);
  if (target.attached_by && !owner_may_trace_(*target.attached_by, target.id.pid)) target.attached_by.reset();
}

// For the messages that end a target's story.
std::string ControllerImpl::children_let_go(const Target& target) {
  return target.children_let_go == 0 ? "" : fmt::format(R"(,"childrenLetGo":{})", target.children_let_go);
}

// `,"code":3` or `,"signal":9`; empty: it isn't known.
static std::string how_params(const std::optional<tracer::WaitStatus>& how) {
  using Kind = tracer::WaitStatus::Kind;
  if (how && how->kind() == Kind::exited) return fmt::format(R"(,"code":{})", how->code());
  if (how && how->kind() == Kind::killed) return fmt::format(R"(,"signal":{})", how->signal());
  return "";
}

void ControllerImpl::on_process_gone(pid_t root, pid_t pid, std::optional<tracer::WaitStatus> how) {
  const auto it = targets_.find(root);
  if (it == targets_.end() || it->second.members.erase(pid) == 0) return;
  Target& t = it->second;
  if (pid == root) t.own_end = how;
  drain_all();
  if (!t.members.empty())  // the children it is followed into live on
    return notify_interested(
        t, "target.memberExited",
        fmt::format(R"({{"pid":{},"member":{}{},"left":{}}})", root, pid, how_params(how), t.members.size()));
  const std::set<ClientId> interested = t.interested;
  spdlog::info("process {} has ended{}{}", root, t.own_end ? how_text(*t.own_end) : "",
               with_its_probes(probe_count(root)));
  mark_gone(root);
  const std::string params = fmt::format(R"({{"pid":{}{}{}}})", root, how_params(t.own_end), children_let_go(t));
  for (const ClientId id : interested)
    if (const auto client = clients_.find(id); client != clients_.end())
      client->second->notify("target.exited", params);
  drop_target(root);
}

void ControllerImpl::on_process_execed(pid_t root, pid_t pid, bool kept, std::string_view comm) {
  const auto it = targets_.find(root);
  if (it == targets_.end()) return;
  if (pid != root) return on_child_execed(it->second, pid, kept, comm);
  drain_all();
  Target& t = it->second;
  const std::set<ClientId> interested = t.interested;
  spdlog::info("process {} runs another program{}", root, with_its_probes(probe_count(root)));
  mark_gone(root);
  t.loader_watch = {};
  t.exe = process::exe(root);
  if (keeping_) t.mark = process::program_mark(root);
  std::string name;
  proto::append_json_string(name, comm);
  std::set<ClientId> denied;
  const bool ended = process::has_ended(root);  // told next; nobody may trace what isn't there
  for (const ClientId id : interested) {
    const auto client = clients_.find(id);
    if (client == clients_.end()) continue;
    const bool allowed = ended || client->second->may_trace(root);
    if (!allowed) denied.insert(id);
    client->second->notify("target.execed",
                           fmt::format(R"({{"pid":{},"attached":{},"comm":{}}})", root, kept && allowed, name));
  }
  if (!ended) forget_denied(t, denied);
  keep(root);
  if (!kept) return drop_target(root);
  if (!t.stays()) detach_if_unused(root, [] {});
}

// `kept`: it is a target of its own now, held at the entry of its program for whoever holds its parent's execs, as long
// as that one may trace it. Else it has been let go, followed or (made by vfork) not.
void ControllerImpl::on_child_execed(Target& parent, pid_t pid, bool kept, std::string_view comm) {
  const pid_t root = parent.id.pid;
  const auto holder = clients_.find(parent.holds_execs);
  const bool allowed = kept && holder != clients_.end() && holder->second->may_trace(pid);
  std::string name;
  proto::append_json_string(name, comm);
  notify_interested(parent, "target.left",
                    fmt::format(R"({{"pid":{},"child":{},"comm":{},"attached":{}}})", root, pid, name, allowed));
  if (kept) {
    Target& t = target(pid);
    if (const auto id = process::target_id(pid)) t.id = *id;
    t.attached = true;
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

void ControllerImpl::on_process_ready(pid_t pid) {
  const auto it = targets_.find(pid);
  if (it == targets_.end()) return;
  if (it->second.holder == ClientId::none && it->second.holds_execs == ClientId::none)
    return;  // it has gone on meanwhile
  notify_interested(it->second, "target.ready", fmt::format(R"({{"pid":{}}})", pid));
}

}  // namespace probed::control
