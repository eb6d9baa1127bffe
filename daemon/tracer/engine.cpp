#include "daemon/tracer/engine.hpp"

#include <utility>

#include "daemon/tracer/rooms.hpp"

namespace probed::tracer {

Engine::Engine(Waiter& waiter, HitSink sink, Listener& listener)
    : rooms_(std::make_unique<Rooms>(waiter, sink, listener)) {
  waiter.set_guardian(this);
}
Engine::~Engine() { rooms_->waiter.set_guardian(nullptr); }

bool Engine::secure(pid_t tid, int signal) { return rooms_->breakpoints.secure(tid, signal); }
void Engine::keep_call(pid_t tid) { rooms_->restarts.keep_call(tid); }

void Engine::set_state_directory(std::string directory) { rooms_->state_directory = std::move(directory); }
bool Engine::is_detaching(pid_t pid) const {
  const Process* process = rooms_->targets.find_process(pid);
  return process && process->detaching();
}
bool Engine::idle() const { return rooms_->targets.tracees.empty(); }
CpuFollower& Engine::cpu_follower() { return rooms_->recorder.cpu_follower(); }

Result<AttachResult> Engine::attach(pid_t pid, const AttachParams& params) {
  return rooms_->attacher.attach(pid, params);
}
void Engine::detach(pid_t pid, Done done) { rooms_->detacher.detach(pid, std::move(done)); }
void Engine::detach_all(std::function<void()> done) { rooms_->detacher.detach_all(std::move(done)); }
Result<void> Engine::resume_held(pid_t pid) { return rooms_->holds.resume_held(pid); }
void Engine::forget_hold(pid_t pid) { rooms_->holds.forget_hold(pid); }
void Engine::forget_keep(pid_t pid) { rooms_->holds.forget_keep(pid); }
void Engine::add(pid_t pid, std::uint32_t execs, std::vector<SiteRequest> batch, Done done) {
  rooms_->probes.add(pid, execs, std::move(batch), std::move(done));
}
void Engine::remove(std::span<const ProbeId> ids, std::function<void()> done) {
  rooms_->probes.remove(ids, std::move(done));
}
void Engine::set_enabled(std::span<const ProbeId> ids, bool enabled,
                         std::function<void(const std::vector<NotArmed>&)> done) {
  rooms_->probes.set_enabled(ids, enabled, std::move(done));
}
std::vector<NotArmed> Engine::set_armed(bool armed) { return rooms_->probes.set_armed(armed); }
void Engine::forget_if_gone(pid_t pid) { rooms_->detacher.forget_if_gone(pid); }
void Engine::look_at_code(pid_t pid) { rooms_->code_changes.look_at_code(pid); }
void Engine::loader_may_go_on(pid_t root, std::uint64_t ticket) { rooms_->holds.loader_may_go_on(root, ticket); }
void Engine::set_optimize(bool optimize) { rooms_->optimiser.set_optimize(optimize); }
void Engine::know_code(pid_t pid, std::uint32_t execs, std::span<const SiteCode> code) {
  rooms_->optimiser.know_code(pid, execs, code);
}
void Engine::refresh_modes(std::span<const ProbeId> ids) { rooms_->optimiser.refresh_modes(ids); }
void Engine::names_known(pid_t pid, std::uint64_t ticket) { rooms_->jump_memory.names_known(pid, ticket); }
void Engine::indices_free(pid_t pid, const events::FeedPtr& feed, std::span<const std::uint32_t> indices) {
  rooms_->jump_memory.indices_free(pid, feed, indices);
}
void Engine::find_threads(pid_t pid) { rooms_->lanes.find_threads(pid); }
void Engine::handle(const Stop& stop) { rooms_->loop.handle(stop); }
std::optional<Waiter::Clock::time_point> Engine::next_deadline() const { return rooms_->loop.next_deadline(); }
void Engine::check_deadlines() { rooms_->loop.check_deadlines(); }
bool Engine::awaits_interrupted() { return rooms_->rounds.awaits_interrupted(); }

}  // namespace probed::tracer
