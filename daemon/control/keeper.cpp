// Persistent probes outlive the daemon: they are kept in files (kept.hpp), and the next daemon puts them back.
//
// A file is written before the answer to whatever changed its probes (of very many: when their counters are), and their
// counters about once a second: after a kill these are as they were then. A probe that is put back is an ordinary one
// whose code had gone, and is revived as such (reviver.cpp); until then, and when that can't be, it is
// listed as gone, with the reason. Asio thread.
#include "daemon/control/keeper.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/base/process.hpp"
#include "daemon/base/reserve.hpp"
#include "daemon/control/parts.hpp"

namespace probed::control {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = 1s;
constexpr int kLookShare = 20;  // of the time at most one part in so many goes into writing
constexpr auto kProven = 60s;   // a daemon that has lived so long with what it has put back doesn't end by it
constexpr std::uint64_t kMostAttempts = 3;
constexpr std::size_t kMostAtOnce = 4096;  // that are written before every answer; more are with their counters

Error gone(std::string message, std::string hint = "remove the probe, and add it to the process of now") {
  return {Reason::target_gone, std::move(message), std::move(hint)};
}

// The log's lines about probes that are not put back. `probectl list` tells of each.
class NotBack {
 public:
  explicit NotBack(pid_t pid) : pid_(pid) {}
  ~NotBack() {
    if (count_ > kMostTold)
      spdlog::warn("nor are {} others of process {}: `probectl list` shows them", count_ - kMostTold, pid_);
  }
  NotBack(const NotBack&) = delete;
  NotBack& operator=(const NotBack&) = delete;

  void tell(const Probe& probe, std::uint64_t hits) {
    if (count_++ < kMostTold)
      spdlog::warn("{} of process {} is not put back, after {} hits: {}", probe.full_name(), pid_, hits,
                   probe.why_gone);
  }

 private:
  static constexpr std::size_t kMostTold = 16;
  pid_t pid_;
  std::size_t count_ = 0;
};

tracer::ProgramPtr shell_of(const KeptProbe& kept, bool returns, std::shared_ptr<tracer::HitLimit> limit) {
  auto program = std::make_shared<tracer::ProbeProgram>();
  program->id = kept.id;
  program->enabled = kept.enabled;
  program->force_step = kept.stepped;
  program->limit = std::move(limit);
  program->counters->hits = kept.hits;
  program->counters->missed = kept.missed;
  program->counters->filtered = kept.filtered;
  if (!kept.optimize) program->no_detour = "it was added so (optimize: false)";
  if (!returns) return program;
  program->role = tracer::ProbeProgram::Role::entry;
  program->returns = std::make_shared<tracer::ReturnProbe>();
  program->returns->abandoned = kept.abandoned;
  program->returns->unmatched = kept.unmatched;
  return program;
}

std::shared_ptr<const lang::Definition> parsed_of(const KeptProbe& kept) {
  auto definition = std::make_shared<lang::Definition>(lang::parse_definition(kept.definition).value());
  if (!kept.usdt) return definition;
  if (!std::holds_alternative<lang::UsdtLocation>(definition->location.where)) definition->location.module.clear();
  definition->location.where = lang::UsdtLocation{kept.usdt->provider, kept.usdt->name};
  return definition;
}

std::chrono::steady_clock::time_point time_of(std::uint64_t nanoseconds) {
  const auto most = static_cast<std::uint64_t>(std::chrono::nanoseconds::max().count());
  return Clock::time_point(std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(nanoseconds, most))));
}

bool is_kept(const Probe& probe) {
  return probe.owner == ClientId::none && !probe.ended && probe.committed && number(probe.leader) == 0;
}

}  // namespace

void Keeper::keep_probes(Keeping keeping) {
  parts_.keeping = std::move(keeping);
  keep_timer_ = std::make_unique<boost::asio::steady_timer>(parts_.io);
  look_at_kept_later({});
}

// ---- into files -----------------------------------------------------------------------------------------------------

void Keeper::note_place(Probe& probe, const tracer::SitePlan& plan) const {
  if (!parts_.keeping || probe.owner != ClientId::none || !plan.address) return;
  probe.place.code.assign(plan.code().begin(), plan.code().end());
  probe.place.backing = plan.backing;
}

KeptProbe Keeper::kept(const Probe& probe) const {
  const ProbeView shown = parts_.views.view(probe);
  KeptProbe kept;
  kept.id = probe.id;
  kept.group = probe.group;
  kept.name = probe.name;
  kept.definition = probe.definition;
  kept.filter = probe.filter;
  kept.symbol = probe.symbol;
  kept.module = probe.module;
  kept.owner = {probe.user, probe.user_group};
  kept.many = probe.many;
  kept.enabled = probe.enabled;
  kept.gone = shown.state == "gone" && !probe.awaited;
  kept.optimize = probe.optimize;
  kept.pending = probe.pending;
  kept.stepped = probe.program->force_step;
  kept.why_disabled = probe.why_disabled;
  kept.why_gone = probe.why_gone;
  if (const auto* usdt = std::get_if<lang::UsdtLocation>(&probe.parsed->location.where))
    kept.usdt = {usdt->provider, usdt->name};
  kept.max_rate = probe.pace.most;
  kept.expires = shown.expires;
  kept.hits = shown.hits;
  kept.missed = shown.missed;
  kept.filtered = shown.filtered;
  kept.abandoned = shown.abandoned;
  kept.unmatched = shown.unmatched;
  kept.glob = probe.glob;
  kept.from = probe.from;
  kept.match = probe.match;
  kept.unwanted = probe.unwanted;
  kept.place = probe.place;
  kept.unwatched = probe.unwatched;
  return kept;
}

std::map<pid_t, KeptTarget> Keeper::kept_targets(std::optional<pid_t> pid) const {
  std::map<pid_t, KeptTarget> all;
  std::map<const tracer::HitLimit*, std::uint64_t> batches;
  const auto is_one = [&](const Probe& probe) { return is_kept(probe) && (!pid || *pid == probe.pid); };
  std::map<pid_t, std::size_t> counts;
  for (const auto& [id, probe] : registry_.probes)
    if (is_one(probe)) ++counts[probe.pid];
  for (const auto& [id, probe] : registry_.probes) {
    if (!is_one(probe)) continue;
    KeptTarget& target = all[probe.pid];
    target.id = {probe.pid, probe.start_time};
    target.program = probe.mark;
    if (target.probes.empty()) make_room(target.probes, counts[probe.pid]);
    target.probes.push_back(kept(probe));
    if (const auto& limit = probe.program->limit)
      target.probes.back().limit = {batches.try_emplace(limit.get(), batches.size() + 1).first->second,
                                    limit->remaining.load(std::memory_order_relaxed)};
  }
  for (const auto& [id, target] : registry_.targets) {
    if (!target.attached || (pid && *pid != id)) continue;
    if (target.attached_by) {
      all[id].id = target.id;
      all[id].program = target.mark;
      all[id].attached_by = target.attached_by;
    }
    if (const auto it = all.find(id); it != all.end()) {
      it->second.follow_fork = target.follow_fork;
      it->second.followed = target.members.empty() ? 0 : target.members.size() - 1;
    }
  }
  const std::string boot = process::boot_id();
  for (auto& [id, target] : all) {
    target.boot = boot;
    target.armed = registry_.armed;
    target.optimize = registry_.optimize;
    const auto file = kept_.find(id);
    target.attempts = file == kept_.end() ? 0 : file->second.attempts;
  }
  return all;
}

void Keeper::keep(const KeptTarget& target) {
  KeptFile& file = kept_[target.id.pid];
  const std::string path = kept_path(parts_.keeping->directory, target.id);
  if (file.path != path) {
    if (!file.path.empty()) ::unlink(file.path.c_str());
    file = {.path = path, .written = 0, .attempts = file.attempts, .proven_at = file.proven_at};
  }
  std::set<ProbeId> left_out;
  const std::string text = kept_text(target, &left_out);
  const std::size_t now = std::hash<std::string>()(text) | 1;
  if (now == file.written) return touch_kept(path);
  if (!left_out.empty() && left_out != file.left_out)
    spdlog::warn("{} probes of process {} won't outlive this daemon: their names are no UTF-8", left_out.size(),
                 target.id.pid);
  file.left_out = std::move(left_out);
  auto written = write_kept(path, text);
  if (!written) {
    ::unlink(path.c_str());  // what stands there is not so any more, and may be what there is no room for
    written = write_kept(path, text);
  }
  file.written = written ? now : 0;
  const std::string before = std::exchange(file.failure, written ? "" : written.error().message);
  if (!written && file.failure != before)
    spdlog::warn("the probes of process {} won't outlive this daemon: {}", target.id.pid, file.failure);
}

void Keeper::note_unkept(ProbeView& view) const {
  const auto file = kept_.find(view.pid);
  if (!view.persist || file == kept_.end()) return;
  std::string why = file->second.failure;
  if (why.empty() && file->second.left_out.contains(view.id)) why = "a name in it is no UTF-8";
  if (!why.empty()) view.notes.push_back("it won't outlive this daemon: " + why);
}

void Keeper::forget_kept(pid_t pid) {
  const auto it = kept_.find(pid);
  if (it == kept_.end()) return;
  ::unlink(it->second.path.c_str());
  kept_.erase(it);
}

void Keeper::keep(pid_t pid) {
  if (!parts_.keeping) return;
  const auto of_it = [&](const auto& entry) { return entry.second.pid == pid && is_kept(entry.second); };
  if (static_cast<std::size_t>(std::ranges::count_if(registry_.probes, of_it)) > kMostAtOnce) return;
  const auto targets = kept_targets(pid);
  if (targets.empty()) return forget_kept(pid);
  keep(targets.begin()->second);
}

void Keeper::keep_all() {
  if (!parts_.keeping) return;
  const auto targets = kept_targets(std::nullopt);
  for (const auto& [pid, target] : targets) keep(target);
  std::vector<pid_t> over;
  for (const auto& [pid, file] : kept_)
    if (!targets.contains(pid)) over.push_back(pid);
  for (const pid_t pid : over) forget_kept(pid);
}

void Keeper::look_at_kept() {
  const auto now = Clock::now();
  for (auto& [pid, file] : kept_)
    if (file.proven_at && now >= *file.proven_at) {
      file.attempts = 0;
      file.proven_at.reset();
    }
  keep_all();
  look_at_kept_later(Clock::now() - now);
}

void Keeper::look_at_kept_later(Clock::duration last_took) {
  if (!parts_.keeping) return;
  keep_timer_->expires_after(std::max<Clock::duration>(kLook, last_took * kLookShare));
  keep_timer_->async_wait([this](const boost::system::error_code& error) {
    if (!error) look_at_kept();
  });
}

// ---- out of files ---------------------------------------------------------------------------------------------------

void Keeper::refuse_kept(const FoundKept& found, const std::string& why) {
  spdlog::error("{} is refused, and its probes with it: {}", found.path, why);
  set_aside(found.path);
}

void Keeper::readopt(std::chrono::milliseconds limit, std::function<void()> done) {
  const auto left = std::make_shared<std::size_t>(1);
  adoption_timer_ = std::make_unique<boost::asio::steady_timer>(parts_.io, limit);
  const auto once = std::make_shared<std::function<void()>>(std::move(done));
  const auto over = [once] {
    if (*once) std::exchange(*once, nullptr)();
  };
  adoption_timer_->async_wait([over](const boost::system::error_code&) { over(); });
  const auto one_done = [this, left] {
    if (--*left == 0) adoption_timer_->cancel();
  };
  auto all = find_kept(parts_.keeping->directory);
  for (const FoundKept& found : all) {  // before anything is armed
    if (!found.target) continue;
    registry_.armed &= found.target->armed;
    registry_.optimize &= found.target->optimize;
  }
  if (!registry_.armed) spdlog::info("disarmed, as the daemon before was");
  parts_.tracer->post([armed = registry_.armed, optimize = registry_.optimize](tracer::Engine& engine) {
    if (!armed) engine.set_armed(false);
    if (!optimize) engine.set_optimize(false);
  });
  for (FoundKept& found : all) {
    if (found.other_boot) {
      ::unlink(found.path.c_str());
      continue;
    }
    if (!found.target) {
      refuse_kept(found, found.target.error().message);
      continue;
    }
    ++*left;
    adopt(std::move(found), one_done);
  }
  one_done();
}

// What can be said before anything is done to the process.
std::optional<Error> Keeper::why_not_adoptable(const KeptTarget& kept) const {
  const pid_t pid = kept.id.pid;
  const auto now = process::target_id(pid);
  if (!now || process::has_ended(pid)) return gone(fmt::format("process {} has ended while no daemon ran", pid));
  if (now->start_time != kept.id.start_time)
    return gone(fmt::format("process {} has ended while no daemon ran; another one has its number now", pid));
  if (kept.program == 0 || process::program_mark(pid) != kept.program)
    return gone(fmt::format("process {} has begun to run another program while no daemon ran", pid));
  if (kept.attempts >= kMostAttempts)
    return Error{Reason::unsupported,
                 fmt::format("{} daemons in a row have ended within {} s of putting the probes of process {} back: see "
                             "their log; `probectl enable` puts them back",
                             kMostAttempts, std::chrono::seconds(kProven).count(), pid),
                 "",
                 {}};
  const std::size_t more = kept.probes.size();
  if (more > registry_.probe_limits.per_target)
    return Error{Reason::limit_exceeded,
                 fmt::format("process {} would have more than {} probes", pid, registry_.probe_limits.per_target),
                 "start probed with a higher --max-probes"};
  return std::nullopt;
}

// As gone, for now: everybody can see them.
void Keeper::enter(const KeptTarget& kept, std::uint64_t last_known) {
  std::map<std::uint64_t, std::shared_ptr<tracer::HitLimit>> limits;
  const auto now = Clock::now();
  for (const KeptProbe& k : kept.probes) {
    Probe probe;
    probe.id = k.id;
    probe.pid = kept.id.pid;
    probe.start_time = kept.id.start_time;
    probe.mark = kept.program;
    probe.user = k.owner.user;
    probe.user_group = k.owner.group;
    probe.group = k.group;
    probe.name = k.name;
    probe.definition = k.definition;
    probe.filter = k.filter;
    probe.symbol = k.symbol;
    probe.module = k.module;
    probe.parsed = parsed_of(k);
    probe.many = k.many;
    probe.glob = k.glob;
    probe.from = k.from;
    probe.match = k.match;
    probe.unwanted = k.unwanted;
    probe.enabled = k.enabled;
    probe.optimize = k.optimize;
    probe.pending = k.pending;
    probe.why_disabled = k.why_disabled;
    probe.gone = probe.committed = true;
    probe.place = k.place;
    probe.awaited = !k.gone;
    probe.why_gone = k.gone && k.why_gone.empty() ? "its code had gone before this daemon was started" : k.why_gone;
    if (probe.awaited) probe.why_gone = "it is being put back";
    probe.pace.most = k.max_rate;
    if (k.expires) probe.expires = time_of(*k.expires);
    if (probe.enabled && probe.expires && now >= *probe.expires) {
      probe.enabled = false;
      probe.why_disabled = "its time (expire) is over";
    }
    probe.unwatched = k.unwatched.value_or(Unwatched());
    ++probe.unwatched->times;
    probe.unwatched->from = last_known;
    probe.unwatched->to = 0;
    std::shared_ptr<tracer::HitLimit> limit;
    if (k.limit) {
      limit = limits[k.limit->batch];
      if (!limit) limit = limits[k.limit->batch] = std::make_shared<tracer::HitLimit>(k.limit->remaining);
      limit->probes.push_back(probe.id);
    }
    probe.program = shell_of(k, probe.parsed->kind == lang::Kind::return_probe, std::move(limit));
    probe.program->enabled = probe.enabled;
    probe.reported_missed = k.missed;
    probe.hits_before = k.hits;
    registry_.last_probe = std::max(registry_.last_probe, number(probe.id));
    registry_.probes.emplace(probe.id, std::move(probe));
  }
  for (const KeptProbe& k : kept.probes)
    if (const auto glob = registry_.probes.find(k.from); glob != registry_.probes.end()) ++glob->second.matches;
}

void Keeper::give_up_awaited(pid_t pid, const Error& why, bool for_good,
                             const std::function<bool(const Probe&)>& of_them) {
  if (parts_.shutdown_timer) return;
  NotBack not_back(pid);
  for (auto& [id, probe] : registry_.probes) {
    if (probe.pid != pid || probe.owner != ClientId::none || number(probe.leader) != 0 || !of_them(probe)) continue;
    if (!probe.awaited && !for_good) continue;
    probe.why_gone = why.message;
    if (for_good) {
      probe.ended = true;
      probe.awaited = false;
    }
    not_back.tell(probe, parts_.stream.counts_of(probe).hits);
  }
}

void Keeper::adopt(FoundKept found, std::function<void()> done) {
  const KeptTarget& kept = *found.target;
  const pid_t pid = kept.id.pid;
  const auto taken = [this](const KeptProbe& probe) { return registry_.probes.contains(probe.id); };
  if (kept_.contains(pid) || std::ranges::any_of(kept.probes, taken)) {
    refuse_kept(found, "another file has this process, or one of these ids, too");
    return done();
  }
  KeptFile& file = kept_[pid];
  file = {.path = found.path, .written = 0, .attempts = kept.attempts, .proven_at = Clock::now() + kProven};
  enter(kept, found.last_known);
  if (const auto why = why_not_adoptable(kept)) {
    const bool for_good = why->reason == Reason::target_gone;
    give_up_awaited(pid, *why, for_good, [](const Probe&) { return true; });
    if (for_good) forget_kept(pid);
    return done();
  }
  ++file.attempts;
  put_back(std::make_shared<const FoundKept>(std::move(found)), std::move(done));
}

// Each that was tried is in place now, waits for its code, or is gone.
void Keeper::settle(const KeptTarget& kept, std::uint64_t last_known, const std::vector<Failed>& failed) {
  if (parts_.shutdown_timer) return;             // what is under way then fails for no reason of its own
  std::size_t shown = 0, back = 0, waiting = 0;  // as people count them: not a glob that has matches
  NotBack not_back(kept.id.pid);
  std::map<ProbeId, const std::string*> whys;
  for (const Failed& f : failed) whys.emplace(f.id, &f.why.message);
  for (const KeptProbe& k : kept.probes) {
    const auto it = registry_.probes.find(k.id);
    if (it == registry_.probes.end() || it->second.ended) continue;
    Probe& probe = it->second;
    if (kept.followed > 0)
      probe.notes.push_back(
          fmt::format("{} children that its process was followed into are not probed any more", kept.followed));
    if (is_shown(probe)) {
      ++shown;
      back += probe.gone ? 0 : 1;
      waiting += probe.pending && probe.gone ? 1 : 0;
    }
    if (!std::exchange(probe.awaited, false)) continue;
    const auto why = whys.find(probe.id);
    probe.why_gone = why != whys.end() ? *why->second : probe.pending ? "" : "its code is not there any more";
    if (probe.pending)
      note_watched(probe);
    else
      not_back.tell(probe, k.hits);
  }
  if (kept.followed > 0)
    spdlog::warn("{} children that process {} was followed into are not probed any more", kept.followed, kept.id.pid);
  const std::uint64_t now = monotonic_now();
  const std::string others = waiting > 0 ? fmt::format(", {} wait for their code", waiting) : "";
  spdlog::info("put back {} of {} probes of process {}{}; nobody counted for {:.3f} s", back, shown, kept.id.pid,
               others, static_cast<double>(now - std::min(now, last_known)) / 1e9);
}

void Keeper::note_watched(Probe& probe) const {
  if (!probe.unwatched || probe.unwatched->to != 0) return;
  probe.unwatched->to = std::max(monotonic_now(), probe.unwatched->from);
  probe.unwatched->total += probe.unwatched->to - probe.unwatched->from;
}

void Keeper::put_back(std::shared_ptr<const FoundKept> found, std::function<void()> done) {
  const pid_t pid = found->target->id.pid;
  const auto any = [](const Probe&) { return true; };
  parts_.attachments.enqueue(pid, [=, this](std::function<void()> next) {
    const auto over = [=, this] {
      keep(pid);
      next();
      parts_.attachments.detach_if_unused(pid, [this, pid, done] {
        keep(pid);
        done();
      });
    };
    const tracer::AttachParams params{found->target->follow_fork, found->target->attached_by.has_value(), false};
    // Before the process is touched: should we end by it, that is known.
    KeptTarget tried = *found->target;
    tried.attempts = kept_[pid].attempts;
    if (parts_.keeping) keep(tried);
    parts_.attachments.ensure_attached(pid, params, [=, this](Result<void> attached) {
      if (!attached && found->target->attached_by)
        spdlog::warn("process {} is not attached to again: {}", pid, attached.error().message);
      if (!attached) {
        give_up_awaited(pid, attached.error(), false, any);
        return over();
      }
      // From here on nothing that we do reaches the next program that it runs.
      const KeptTarget& kept = *found->target;
      Target& t = registry_.target(pid);
      if (t.id.start_time != kept.id.start_time || t.mark != kept.program) {
        give_up_awaited(pid, gone(fmt::format("process {} has ended, or runs another program", pid)), true, any);
        return over();
      }
      std::map<Owner, Result<void>> allowed;
      const auto may = [&](Owner owner) -> const Result<void>& {
        const auto known = allowed.find(owner);
        return known != allowed.end() ? known->second
                                      : allowed.emplace(owner, registry_.owner_may_trace(owner, pid)).first->second;
      };
      for (const KeptProbe& k : kept.probes) may(k.owner);
      for (const auto& [owner, permitted] : allowed)
        if (!permitted)
          give_up_awaited(pid, permitted.error(), true, [&](const Probe& p) {
            return Owner{p.user, p.user_group} == owner;
          });
      if (const auto& owner = kept.attached_by; owner && !may(*owner)) {
        spdlog::warn("process {} is not attached to again: {}", pid, may(*owner).error().message);
      } else if (owner) {
        t.attached_by = owner;
      }
      parts_.reviver.revive_awaited(pid, [=, this](const std::vector<Failed>& failed) {
        settle(*found->target, found->last_known, failed);
        over();
      });
    });
  });
}

void Keeper::end() {
  for (auto& [pid, file] : kept_) file.attempts = 0;
  keep_all();
  parts_.keeping.reset();
}

}  // namespace probed::control
